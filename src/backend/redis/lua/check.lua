-- A page of everything that is stored of resources, for verification.
-- ARGV: first (as ZRANGEBYLEX takes it), how many, and what the keys of leases,
-- fences and states begin with.
local names = read('ZRANGEBYLEX', KNOWN, ARGV[4], '+', 'LIMIT', 0, ARGV[5])
local answer = { 'check' }
for _, name in ipairs(names) do
  local of = { name = name, lease = ARGV[6] .. name, fence = ARGV[7] .. name, state = ARGV[8] .. name }
  local mark = load_mark(of)
  local lease = load_lease(of, mark)
  local state = load_state(of)
  local listed = read('ZSCORE', NAMES, name) and true or false
  if listed ~= (state ~= nil and state.exists) then
    corrupt(NAMES, 'whether it has `' .. name .. '` differs from whether that exists')
  end
  answer[#answer + 1] = {
    name,
    mark or false,
    lease and { lease.owner, lease.token, as_text(lease.expires), as_text(lease.ttl) } or false,
    state and state.exists and read('HGETALL', of.state) or false,
  }
end
return answer
