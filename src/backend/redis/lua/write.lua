-- Put before the scripts that write: the history (R20, R26) and the writes
-- that they share.

-- The first write of a script. The keys that all operations share are looked
-- at before it, so that no command after it can fail.
local function append(events, id)
  for key, kind in pairs({
    [LOG] = 'stream',
    [IDS] = 'stream',
    [RECEIPTS] = 'hash',
    [NAMES] = 'zset',
    [KNOWN] = 'zset',
  }) do
    local found = redis.call('TYPE', key).ok
    if found ~= 'none' and found ~= kind then
      corrupt(key, 'it is a ' .. found .. ' instead of a ' .. kind)
    end
  end
  if id and #redis.call('XRANGE', IDS, '(' .. meta.sequence .. '-0', '+', 'COUNT', 1) > 0 then
    corrupt(IDS, 'it has commits after ' .. meta.sequence .. ', the newest event known')
  end
  for _, event in ipairs(events) do
    event.at = as_text(now)
    local sequence = successor(meta.sequence)
    local added = redis.pcall('XADD', LOG, sequence .. '-0', 'event', cjson.encode(event))
    if type(added) == 'table' and added.err then
      if string.find(added.err, 'equal or smaller', 1, true) then
        corrupt(LOG, 'it has events after ' .. meta.sequence .. ', the newest known')
      end
      error(added, 0)
    end
    meta.sequence = sequence
  end
  if id then
    redis.call('XADD', IDS, meta.sequence .. '-0', 'id', id)
  end
end

-- The newest `history` events stay, and up to a tenth more until pruning; a
-- commit id is forgotten with its event.
local function prune(history)
  local kept = distance(meta.oldest, meta.sequence) + 1
  if kept <= history + math.floor(history / 10) then
    return
  end
  meta.oldest = successor(minus(meta.sequence, history))
  local last = minus(meta.oldest, 1)
  while true do
    local gone = redis.call('XRANGE', IDS, '-', last, 'COUNT', CHUNK)
    if #gone == 0 then
      break
    end
    local ids = {}
    for at, entry in ipairs(gone) do
      ids[at] = entry[2][2]
    end
    redis.call('HDEL', RECEIPTS, unpack(ids))
    redis.call('XTRIM', IDS, 'MINID', successor(string.match(gone[#gone][1], '^%d+')) .. '-0')
  end
  redis.call('XTRIM', LOG, 'MINID', meta.oldest .. '-0')
end

-- The last write of a script. `now` is kept so that time never runs back.
local function finish()
  redis.call(
    'HSET', META, 'format', FORMAT, 'sequence', meta.sequence, 'oldest', meta.oldest,
    'clock', as_text(now)
  )
end

local function save_lease(of, lease)
  redis.call(
    'HSET', of.lease, 'owner', lease.owner, 'token', lease.token, 'expires',
    as_text(lease.expires), 'ttl', as_text(lease.ttl)
  )
end

local function save_mark(of, mark)
  redis.call('SET', of.fence, mark)
  redis.call('ZADD', KNOWN, 0, of.name)
end

local function save_head(of, version, exists, fenced, bytes)
  redis.call(
    'HSET', of.state, 'version', version, 'exists', exists and '1' or '0', 'fenced',
    fenced and '1' or '0', 'bytes', as_text(bytes)
  )
  redis.call(exists and 'ZADD' or 'ZREM', NAMES, unpack(exists and { 0, of.name } or { of.name }))
  redis.call('ZADD', KNOWN, 0, of.name)
end

-- Wakes those who wait for a lease. They also look by themselves: that the
-- message is not permitted, or gets lost, does no harm.
local function wake(of)
  redis.pcall('PUBLISH', ARGV[3], of.name)
end
