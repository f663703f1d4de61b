-- The mark and the last lease (R7). ARGV: resource.
local of = resource(1, ARGV[4])
local mark = load_mark(of)
local lease = load_lease(of, mark)
return {
  'status',
  as_text(now),
  mark or false,
  lease and { lease.owner, lease.token, as_text(lease.expires), as_text(lease.ttl) } or false,
}
