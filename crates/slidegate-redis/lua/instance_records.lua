-- Reads the first bytes of values: of the records that instances published, and of keys.
--
-- KEYS: the records, in one slot.
-- ARGV[1]: the maximum number of bytes to read of each record (integer).
-- Reply: the bytes of each; empty if it is missing or has another type.
-- Layout: docs/redis-layout.md. Rust twins: `src/admin/instances.rs`, `src/admin/closed.rs`.
local records = {}
for position = 1, #KEYS do
  local record = redis.pcall('GETRANGE', KEYS[position], 0, ARGV[1] - 1)
  records[position] = type(record) == 'string' and record or ''
end
return records
