-- R5. ARGV: resource, owner, token, ttl.
local of, owner, token, ttl = resource(1, ARGV[4]), ARGV[5], ARGV[6], tonumber(ARGV[7])
local mark = load_mark(of)
guard(of, mark, token)
local stored = load_lease(of, mark)
if not stored or stored.token ~= token then
  refuse('lost', of.name, token, 'expired')
end
if stored.owner ~= owner then
  -- The same token in other hands: this lease comes from a life of the store
  -- that a restored backup does not know (R15).
  refuse('lost', of.name, token, 'superseded', token)
end
if not is_live(stored, mark) then
  refuse('lost', of.name, token, stored.token == mark and stored.expires == 0 and 'released' or 'expired')
end
stored.expires = now + ttl
stored.ttl = ttl
save_lease(of, stored)
finish()
return { 'renewed', as_text(stored.expires) }
