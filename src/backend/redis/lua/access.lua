-- Whether the user may run all that the scripts run: a script that is stopped
-- half way by a missing permission would leave half an operation.
-- ARGV: what the keys of leases, fences and states begin with.
-- Redis before 7.0 cannot tell.
if not redis.acl_check_cmd then
  return { 'access' }
end
for _, command in ipairs({
  { 'HMGET', META, 'f' },
  { 'HGET', RECEIPTS, 'f' },
  { 'HSET', META, 'f', 'v' },
  { 'HDEL', RECEIPTS, 'f' },
  { 'HKEYS', ARGV[6] },
  { 'HLEN', ARGV[6] },
  { 'HSTRLEN', ARGV[6], 'f' },
  { 'HGETALL', ARGV[6] },
  { 'UNLINK', ARGV[6] },
  { 'HSET', ARGV[6], 'f', 'v' },
  { 'HSET', ARGV[4], 'f', 'v' },
  { 'HMGET', ARGV[4], 'f' },
  { 'EXISTS', ARGV[4] },
  { 'GET', ARGV[5] },
  { 'SET', ARGV[5], 'v' },
  { 'TYPE', LOG },
  { 'XADD', LOG, '*', 'f', 'v' },
  { 'XRANGE', LOG, '-', '+' },
  { 'XTRIM', LOG, 'MINID', '0' },
  { 'XADD', IDS, '*', 'f', 'v' },
  { 'ZADD', NAMES, '0', 'n' },
  { 'ZREM', NAMES, 'n' },
  { 'ZSCORE', NAMES, 'n' },
  { 'ZRANGEBYLEX', NAMES, '-', '+' },
  { 'ZADD', KNOWN, '0', 'n' },
  { 'TIME' },
}) do
  if not redis.acl_check_cmd(unpack(command)) then
    refuse('no_permission', command[1], command[2] or '')
  end
end
return { 'access', redis.acl_check_cmd('PUBLISH', ARGV[3], 'n') and '1' or '0' }
