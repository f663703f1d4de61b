-- R2, R3, R4, R24: takes all the leases, or none of them.
-- ARGV: owner, ttl, whether to create, then the resources' names.
local owner, ttl, create = ARGV[4], tonumber(ARGV[5]), ARGV[6] == '1'
local plan, events, answer = {}, {}, { 'acquired' }
for at = 1, #ARGV - 6 do
  local of = resource(at, ARGV[6 + at])
  local mark = load_mark(of)
  local held = load_lease(of, mark)
  local state = load_state(of)
  local missing = not (state and state.exists)
  if missing and not create then
    refuse('not_found', of.name)
  end
  local lease = { owner = owner, expires = now + ttl, ttl = ttl }
  local is_new = not is_live(held, mark)
  if is_new then
    lease.token = next_token(of, mark)
  elseif held.owner == owner then
    -- R3: extended, never shortened, and the token stays.
    lease.token = held.token
    lease.expires = math.max(held.expires, lease.expires)
  else
    refuse('held', of.name, held.owner, as_text(held.expires))
  end
  local created = missing and next_version(of, state) or nil
  plan[at] = { of = of, lease = lease, is_new = is_new, created = created, fenced = state and state.fenced }
  -- An extension is a renewal, which is not an event, unless it created.
  if is_new or created then
    events[#events + 1] = {
      kind = 'acquired',
      resource = of.name,
      owner = owner,
      token = lease.token,
      expires = as_text(lease.expires),
      ttl = as_text(ttl),
      created = created,
    }
  end
  answer[#answer + 1] = { lease.token, as_text(lease.expires), is_new and '1' or '0' }
end
append(events)
for _, step in ipairs(plan) do
  if step.is_new then
    save_mark(step.of, step.lease.token)
  end
  save_lease(step.of, step.lease)
  if step.created then
    -- R24: the state is created in the step that acquires.
    save_head(step.of, step.created, true, step.fenced, 0)
  end
end
prune(tonumber(ARGV[2]))
finish()
return answer
