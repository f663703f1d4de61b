-- A page of the history. ARGV: after which sequence, how many.
local after, count = ARGV[4], ARGV[5]
local first = compare(after, MAX_TOKEN) >= 0 and MAX_TOKEN or successor(after)
if compare(first, meta.oldest) < 0 then
  return { 'events', meta.oldest, meta.sequence, {} }
end
local found = {}
if tonumber(count) > 0 then
  found = read('XRANGE', LOG, first .. '-0', '+', 'COUNT', count)
end
return { 'events', meta.oldest, meta.sequence, found }
