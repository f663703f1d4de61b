-- R9. ARGV: resource.
local of = resource(1, ARGV[4])
local mark = load_mark(of)
local state = load_state(of)
if not mark and not (state and state.exists) then
  refuse('not_found', of.name)
end
-- The stored lease stays as it is: its token is below the mark now.
mark = next_token(of, mark)
append({ { kind = 'revoked', resource = of.name, mark = mark } })
save_mark(of, mark)
prune(tonumber(ARGV[2]))
finish()
wake(of)
return { 'revoked', mark }
