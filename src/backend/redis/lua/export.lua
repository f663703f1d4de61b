-- Everything that is stored of resources, those deleted included, from one
-- snapshot. ARGV: what the keys of leases, fences and states begin with; then
-- how many names follow, and those; or '' and a range of names (as
-- ZRANGEBYLEX takes its first) and how many.
local names = {}
if ARGV[7] == '' then
  names = read('ZRANGEBYLEX', KNOWN, ARGV[8], '+', 'LIMIT', 0, ARGV[9])
else
  for at = 1, tonumber(ARGV[7]) do
    names[at] = ARGV[7 + at]
  end
end
local answer = { 'export', as_text(now), meta.sequence }
for _, name in ipairs(names) do
  local of = { name = name, lease = ARGV[4] .. name, fence = ARGV[5] .. name, state = ARGV[6] .. name }
  local mark = load_mark(of)
  local lease = load_lease(of, mark)
  local state = load_state(of)
  answer[#answer + 1] = {
    name,
    mark or false,
    lease and { lease.owner, lease.token, as_text(lease.expires), as_text(lease.ttl) } or false,
    state and read('HGETALL', of.state) or false,
  }
end
return answer
