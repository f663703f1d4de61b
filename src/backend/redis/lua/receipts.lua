-- A page of the commit ids that are kept (R26), for verification.
-- ARGV: the stream id to begin at, how many.
local answer = { 'receipts' }
for _, entry in ipairs(read('XRANGE', IDS, ARGV[4], '+', 'COUNT', ARGV[5])) do
  local sequence, id = string.match(entry[1], '^(%d+)-0$'), entry[2][2]
  local receipt = read('HGET', RECEIPTS, id)
  local decoded, parts = pcall(cjson.decode, receipt or '')
  if
    not decoded
    or type(parts) ~= 'table'
    or type(parts.versions) ~= 'table'
    or parts.sequence ~= sequence
  then
    corrupt(RECEIPTS, 'the receipt of commit ' .. id .. ' is missing or does not decode')
  end
  answer[#answer + 1] = entry[1]
end
return answer
