-- A page of the resources that exist, by the bytes of their names.
-- ARGV: the first (as ZRANGEBYLEX takes it), what they all begin with, how
-- many, and what the keys of leases, fences and states begin with.
-- No UTF-8 text has the byte 255.
local last = ARGV[5] == '' and '+' or '(' .. ARGV[5] .. '\255'
local names = read('ZRANGEBYLEX', NAMES, ARGV[4], last, 'LIMIT', 0, ARGV[6])
local answer = { 'list', as_text(now) }
for _, name in ipairs(names) do
  local of = { name = name, lease = ARGV[7] .. name, fence = ARGV[8] .. name, state = ARGV[9] .. name }
  local state = load_state(of)
  if not (state and state.exists) then
    corrupt(of.state, 'it is missing though the list of names has it')
  end
  local mark = load_mark(of)
  local lease = load_lease(of, mark)
  answer[#answer + 1] = {
    name,
    state.version,
    state.fenced and '1' or '0',
    as_text(redis.call('HLEN', of.state)),
    mark or false,
    lease and { lease.owner, lease.token, as_text(lease.expires), as_text(lease.ttl) } or false,
  }
end
return answer
