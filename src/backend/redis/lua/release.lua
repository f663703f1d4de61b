-- R6. ARGV: resource, owner, token.
local of, owner, token = resource(1, ARGV[4]), ARGV[5], ARGV[6]
local mark = load_mark(of)
local stored = load_lease(of, mark)
if not (is_live(stored, mark) and stored.owner == owner and stored.token == token) then
  return { 'released', '0' }
end
append({ { kind = 'released', resource = of.name, owner = owner, token = token } })
stored.expires = 0
save_lease(of, stored)
prune(tonumber(ARGV[2]))
finish()
wake(of)
return { 'released', '1' }
