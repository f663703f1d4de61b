-- Put before every script: keys, exact numbers, store time, and the records
-- of a resource. A script decides first and writes last: a refusal leaves by
-- `refuse`, before anything is written.
--
-- KEYS: meta, log, ids, receipts, names, known; then lease, fence and state of
-- each resource that the call names.
-- ARGV: the time in ms ('' for the server's own), how many events to keep,
-- the channel of those who wait; then what the script says.

local META, LOG, IDS, RECEIPTS, NAMES, KNOWN =
    KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local FORMAT = '1'
local MAX_TOKEN = '9223372036854775807'
local MAX_TTL = 366 * 86400000
local CHUNK = 1000

local function refuse(...)
  error({ refusal = { ... } }, 0)
end

-- R29: what is stored under `key` is not what this store writes.
local function corrupt(key, message)
  refuse('corrupt', key, message)
end

-- A command on a key that may hold something else than this store's data.
local function read(command, key, ...)
  local reply = redis.pcall(command, key, ...)
  if type(reply) == 'table' and reply.err then
    if string.find(reply.err, 'WRONGTYPE', 1, true) then
      corrupt(key, 'it holds another type of value')
    end
    error(reply, 0)
  end
  return reply
end

-- Numbers. Lua's are doubles, exact to 2^53 only: tokens, versions and
-- sequences are decimal text, compared by length and then by digits.

local function compare(a, b)
  if #a ~= #b then
    return #a < #b and -1 or 1
  end
  for at = 1, #a, 9 do
    local x, y = tonumber(string.sub(a, at, at + 8)), tonumber(string.sub(b, at, at + 8))
    if x ~= y then
      return x < y and -1 or 1
    end
  end
  return 0
end

local function successor(text)
  local head, digit, nines = string.match(text, '^(%d-)([0-8]?)(9*)$')
  local raised = digit == '' and '1' or string.format('%d', tonumber(digit) + 1)
  return head .. raised .. string.rep('0', #nines)
end

local function split(text)
  return tonumber(string.sub(text, 1, -10)) or 0, tonumber(string.sub(text, -9))
end

-- Exact below 2^53, and above it still above any number below.
local function distance(from, to)
  local high_from, low_from = split(from)
  local high_to, low_to = split(to)
  return (high_to - high_from) * 1e9 + (low_to - low_from)
end

-- For a number that is not above the text's.
local function minus(text, number)
  local high, low = split(text)
  high, low = high - math.floor(number / 1e9), low - number % 1e9
  if low < 0 then
    high, low = high - 1, low + 1e9
  end
  if high == 0 then
    return string.format('%.0f', low)
  end
  return string.format('%.0f%09.0f', high, low)
end

-- A token, version or sequence as it must be stored: 1 to i64::MAX.
local function positive(key, what, text)
  if
    type(text) ~= 'string'
    or not string.find(text, '^[1-9]%d*$')
    or compare(text, MAX_TOKEN) > 0
  then
    corrupt(key, what .. ' is not a number from 1 to ' .. MAX_TOKEN)
  end
  return text
end

-- Milliseconds: exact as a double.
local function millis(key, what, text)
  if type(text) ~= 'string' or not string.find(text, '^%d+$') or #text > 16 then
    corrupt(key, what .. ' is not a number of milliseconds')
  end
  return tonumber(text)
end

local function flag(key, what, text)
  if text ~= '0' and text ~= '1' then
    corrupt(key, what .. ' is neither 0 nor 1')
  end
  return text == '1'
end

local function as_text(number)
  return string.format('%.0f', number)
end

-- The store's own records.

local function load_meta()
  local stored = read('HMGET', META, 'format', 'sequence', 'oldest', 'clock')
  local format, sequence, oldest, clock = stored[1], stored[2], stored[3], stored[4]
  if not (format or sequence or oldest or clock) then
    return { sequence = '0', oldest = '1', clock = 0 }
  end
  if format ~= FORMAT then
    corrupt(META, 'its format is not ' .. FORMAT .. ', the one that this version reads')
  end
  if sequence ~= '0' then
    positive(META, 'its sequence', sequence)
  end
  return {
    sequence = sequence,
    oldest = positive(META, 'its oldest event', oldest),
    clock = millis(META, 'its clock', clock),
  }
end

local meta
-- Store time (R11): the server's, and never before what the store has seen.
local now

local function begin()
  meta = load_meta()
  if ARGV[1] ~= '' then
    now = tonumber(ARGV[1])
  else
    local time = redis.call('TIME')
    now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
  end
  if now < meta.clock then
    now = meta.clock
  end
end

-- The keys of the resource that the call names as its `at`th.
local function resource(at, name)
  local first = 6 + 3 * (at - 1)
  return {
    name = name,
    lease = KEYS[first + 1],
    fence = KEYS[first + 2],
    state = KEYS[first + 3],
  }
end

-- The mark (R7), or nil. A lease without one tells of a mark that was lost:
-- to go on would issue old tokens again (R1).
local function load_mark(of)
  local mark = read('GET', of.fence)
  if mark then
    return positive(of.fence, 'the mark', mark)
  end
  if redis.call('EXISTS', of.lease) == 1 then
    corrupt(of.fence, 'the mark is missing though a lease was granted: was it evicted?')
  end
  return nil
end

local function load_lease(of, mark)
  local stored = read('HMGET', of.lease, 'owner', 'token', 'expires', 'ttl')
  local owner, token, expires, ttl = stored[1], stored[2], stored[3], stored[4]
  if not (owner or token or expires or ttl) then
    if redis.call('EXISTS', of.lease) == 1 then
      corrupt(of.lease, 'it has none of the parts of a lease')
    end
    return nil
  end
  if not owner or owner == '' then
    corrupt(of.lease, 'the owner is missing')
  end
  local lease = {
    owner = owner,
    token = positive(of.lease, 'the token', token),
    expires = millis(of.lease, 'the expiry', expires),
    ttl = millis(of.lease, 'the time to live', ttl),
  }
  if lease.ttl < 1 or lease.ttl > MAX_TTL then
    corrupt(of.lease, 'the time to live is outside 1 ms to 366 days')
  end
  if not mark or compare(lease.token, mark) > 0 then
    corrupt(of.fence, 'the mark is below the token of a lease')
  end
  return lease
end

-- An expiry of 0 says that it was released.
local function is_live(lease, mark)
  return lease and lease.token == mark and lease.expires ~= 0 and now < lease.expires
end

-- Version, whether it exists, whether it is fenced, and the bytes of its names
-- and values; nil if nothing was ever stored.
local function load_state(of)
  local stored = read('HMGET', of.state, 'version', 'exists', 'fenced', 'bytes')
  local version, exists, fenced, bytes = stored[1], stored[2], stored[3], stored[4]
  if not (version or exists or fenced or bytes) then
    if redis.call('EXISTS', of.state) == 1 then
      corrupt(of.state, 'it has none of the parts of a state')
    end
    return nil
  end
  return {
    version = positive(of.state, 'the version', version),
    exists = flag(of.state, 'whether it exists', exists),
    fenced = flag(of.state, 'whether it is fenced', fenced),
    bytes = millis(of.state, 'the number of bytes', bytes),
  }
end

local function next_version(of, state)
  if not state then
    return '1'
  end
  if state.version == MAX_TOKEN then
    corrupt(of.state, 'the version cannot be counted up')
  end
  return successor(state.version)
end

-- R28: the token after the mark.
local function next_token(of, mark)
  if mark == MAX_TOKEN then
    refuse('exhausted', of.name)
  end
  return mark and successor(mark) or '1'
end

-- R8 and R13: fails when the mark is above the token, and only then.
local function guard(of, mark, token)
  if mark and compare(mark, token) > 0 then
    refuse('lost', of.name, token, 'superseded', mark)
  end
end
