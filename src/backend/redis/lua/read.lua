-- The states of resources, from one snapshot. ARGV: their names.
local answer = { 'states' }
for at = 1, #ARGV - 3 do
  local of = resource(at, ARGV[3 + at])
  local state = load_state(of)
  answer[#answer + 1] = state and state.exists and read('HGETALL', of.state) or false
end
return answer
