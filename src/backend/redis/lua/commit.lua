-- R13 to R18, R20, R22, R26: the fences, then the checks, then the writes.
-- ARGV: agent, id ('' for none), fingerprint, how many resources and their
-- names; then how many fences, checks and writes, and each of them.
local MAX_STATE_BYTES = 67108864
local at = 3

local function take()
  at = at + 1
  return ARGV[at]
end

local function take_number()
  return tonumber(take())
end

local agent, id, fingerprint = take(), take(), take()
if id == '' then
  id = nil
end
local resources, marks, states = {}, {}, {}
for index = 1, take_number() do
  resources[index] = resource(index, take())
end

-- R26: the first outcome, whatever has happened since.
if id then
  local stored = read('HGET', RECEIPTS, id)
  if stored then
    local decoded, receipt = pcall(cjson.decode, stored)
    if not decoded or type(receipt) ~= 'table' or type(receipt.versions) ~= 'table' then
      corrupt(RECEIPTS, 'the receipt of commit ' .. id .. ' does not decode')
    end
    if receipt.fingerprint ~= fingerprint then
      refuse('invalid_id')
    end
    return { 'committed', receipt.sequence, unpack(receipt.versions) }
  end
end

local function state_of(index)
  if states[index] == nil then
    states[index] = load_state(resources[index]) or false
  end
  return states[index] or nil
end

-- R18: fences first.
local fences, raised = {}, {}
for n = 1, take_number() do
  local of, token, must_be_live = resources[take_number()], take(), take() == '1'
  local mark = load_mark(of)
  -- R13; R14: that a lease has expired is not looked at here.
  guard(of, mark, token)
  if must_be_live then
    -- R16
    local lease = load_lease(of, mark)
    if not (is_live(lease, mark) and lease.token == token) then
      refuse('lost', of.name, token, 'expired')
    end
  end
  if not mark or compare(mark, token) < 0 then
    -- R15
    raised[#raised + 1] = { of = of, token = token }
  end
  fences[n] = { of.name, token }
end

local checks = {}
for n = 1, take_number() do
  checks[n] = { index = take_number(), field = take(), version = take() }
end

local writes = {}
for n = 1, take_number() do
  local write = { index = take_number(), fenced = take(), kind = take(), fields = {} }
  for field = 1, take_number() do
    local name, is_there = take(), take() == '1'
    write.fields[field] = { name, is_there and take() or cjson.null }
  end
  writes[n] = write
end

if #fences == 0 then
  -- R17
  for _, write in ipairs(writes) do
    local state = state_of(write.index)
    if state and state.fenced then
      refuse('fence_required', resources[write.index].name)
    end
  end
end

-- R22. No version is ''; the name of no field is ''.
for _, check in ipairs(checks) do
  local of, state = resources[check.index], state_of(check.index)
  local found = ''
  if state and state.exists then
    found = state.version
    if check.field ~= '' then
      found = redis.call('HGET', of.state, 'v:' .. check.field) or ''
      if found ~= '' then
        positive(of.state, 'the version of a field', found)
      end
    end
  end
  if found ~= check.version then
    refuse('conflict', of.name, check.field)
  end
end

-- What a write does, or nil when it changes nothing.
local function apply(write)
  local of, state = resources[write.index], state_of(write.index)
  local existed = state ~= nil and state.exists
  local was_fenced = state ~= nil and state.fenced
  local fenced = was_fenced
  if write.fenced ~= '' then
    fenced = write.fenced == '1'
  end
  local step = {
    of = of,
    kind = write.kind,
    version = next_version(of, state),
    fenced = fenced,
    exists = true,
    bytes = 0,
    set = {},
    gone = {},
    changed = {},
  }
  if write.kind == 'delete' then
    if not existed then
      return nil
    end
    step.exists = false
    return step
  end
  if write.kind == 'replace' then
    local named = {}
    for _, field in ipairs(write.fields) do
      named[field[1]] = true
    end
    -- Their order is that of the hash: the reader sorts them.
    for _, stored in ipairs(existed and redis.call('HKEYS', of.state) or {}) do
      local name = string.match(stored, '^f:(.*)$')
      if name and not named[name] then
        step.changed[#step.changed + 1] = { name, cjson.null }
      end
    end
    if existed and #write.fields == 0 and #step.changed == 0 and fenced == was_fenced then
      return nil
    end
  else
    step.bytes = existed and state.bytes or 0
  end
  for _, field in ipairs(write.fields) do
    local name, value = field[1], field[2]
    local old = 0
    if write.kind == 'fields' and existed then
      old = redis.call('HSTRLEN', of.state, 'f:' .. name)
    end
    if old > 0 then
      step.bytes = step.bytes - old - #name
    end
    if value ~= cjson.null then
      step.bytes = step.bytes + #name + #value
      step.set[#step.set + 1] = field
      step.changed[#step.changed + 1] = field
    elseif old > 0 then
      step.gone[#step.gone + 1] = name
      step.changed[#step.changed + 1] = field
    end
  end
  if write.kind == 'fields' and #step.changed == 0 then
    local sets_fence = write.fenced ~= '' and (not existed or fenced ~= was_fenced)
    if not sets_fence then
      return nil
    end
  end
  if step.bytes < 0 then
    corrupt(of.state, 'the number of bytes is below that of its fields')
  end
  if step.bytes > MAX_STATE_BYTES then
    refuse('too_large', of.name, as_text(step.bytes))
  end
  return step
end

local plan, changes, versions = {}, {}, {}
for _, write in ipairs(writes) do
  local step = apply(write)
  if step then
    plan[#plan + 1] = step
    changes[#changes + 1] = {
      resource = step.of.name,
      version = step.version,
      deleted = not step.exists,
      fenced = step.fenced,
      fields = #step.changed > 0 and step.changed or nil,
    }
    versions[#versions + 1] = step.of.name
    versions[#versions + 1] = step.version
  end
end
-- A commit that changes nothing leaves no trace: it writes nothing.
if #plan == 0 and #raised == 0 then
  return { 'committed', meta.sequence }
end

append({
  {
    kind = 'committed',
    agent = agent,
    id = id,
    fences = #fences > 0 and fences or nil,
    changes = #changes > 0 and changes or nil,
  },
}, id)
for _, mark in ipairs(raised) do
  save_mark(mark.of, mark.token)
end
for _, step in ipairs(plan) do
  local key = step.of.state
  if step.kind ~= 'fields' then
    redis.call('UNLINK', key)
  end
  save_head(step.of, step.version, step.exists, step.fenced, step.bytes)
  for _, field in ipairs(step.set) do
    redis.call('HSET', key, 'v:' .. field[1], step.version, 'f:' .. field[1], field[2])
  end
  for _, name in ipairs(step.gone) do
    redis.call('HDEL', key, 'v:' .. name, 'f:' .. name)
  end
end
if id then
  redis.call('HSET', RECEIPTS, id, cjson.encode({
    fingerprint = fingerprint,
    sequence = meta.sequence,
    versions = versions,
  }))
end
prune(tonumber(ARGV[2]))
finish()
return { 'committed', meta.sequence, unpack(versions) }
