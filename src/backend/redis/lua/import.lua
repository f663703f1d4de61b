-- Takes over what another store held (R1). What it becomes was decided from an
-- export: nothing is written unless all is still as it was then.
-- ARGV: the newest sequence then; how many resources, and of each its name,
-- the mark, lease and version then, and what they become; how many events of
-- this store, and each as JSON; how many of the other, and each with its
-- sequence.
local at = 3
local function take()
  at = at + 1
  return ARGV[at]
end

local function take_lease()
  if take() == '0' then
    return nil
  end
  return { owner = take(), token = take(), expires = tonumber(take()), ttl = tonumber(take()) }
end

local function same_lease(a, b)
  return (not a and not b)
    or (a and b and a.owner == b.owner and a.token == b.token and a.expires == b.expires)
end

if meta.sequence ~= take() then
  return { 'imported', '0' }
end
local writes = {}
for number = 1, tonumber(take()) do
  local of = resource(number, take())
  local mark, version, lease = take(), take(), take_lease()
  local here = load_mark(of)
  local state = load_state(of)
  if
    (here or '') ~= mark
    or (state and state.version or '') ~= version
    or not same_lease(load_lease(of, here), lease)
  then
    return { 'imported', '0' }
  end
  local write = { of = of, mark = take(), lease = take_lease() }
  if take() == '1' then
    write.version, write.exists, write.fenced = take(), take() == '1', take() == '1'
    write.bytes, write.entries = tonumber(take()), {}
    for field = 1, 2 * tonumber(take()) do
      write.entries[2 * field - 1], write.entries[2 * field] = take(), take()
    end
  end
  writes[number] = write
end
local own = {}
for number = 1, tonumber(take()) do
  own[number] = cjson.decode(take())
end
append(own)
for number = 1, tonumber(take()) do
  local sequence, event = take(), take()
  if meta.sequence == '0' then
    meta.oldest = sequence
  end
  redis.call('XADD', LOG, sequence .. '-0', 'event', event)
  meta.sequence = sequence
end
for _, write in ipairs(writes) do
  local of = write.of
  if write.mark ~= '' then
    save_mark(of, write.mark)
  end
  if write.lease then
    save_lease(of, write.lease)
  end
  if write.version then
    redis.call('UNLINK', of.state)
    for from = 1, #write.entries, CHUNK do
      redis.call('HSET', of.state, unpack(write.entries, from, math.min(from + CHUNK - 1, #write.entries)))
    end
    save_head(of, write.version, write.exists, write.fenced, write.bytes)
  end
end
prune(tonumber(ARGV[2]))
finish()
return { 'imported', '1' }
