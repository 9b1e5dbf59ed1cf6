-- Acknowledges totals of ended windows: the value of a key keeps the end with a total of 0.
--
-- KEYS: the keys; then for each the key of its usage while it has holds. All in one slot.
-- ARGV: for each key the end of the window (integer, us).
-- Reply: 0.
-- Layout: docs/redis-layout.md. Rust twin: `src/admin/closed.rs`.
local count = #KEYS / 2
for position = 1, count do
  local key, acknowledged = KEYS[position], ARGV[position] + 0
  local raw = redis.call('GETRANGE', key, '0', '34')
  if raw:byte(1) == 21 then
    key = KEYS[count + position]
    raw = redis.call('GETRANGE', key, '0', '34')
  end
  if #raw == 35 and raw:byte(1) == 17 then
    local stop, _, ended = struct.unpack('<I7I7I7', raw, 8)
    if acknowledged == stop or acknowledged == ended then
      redis.call('SETRANGE', key, '21', struct.pack('<I7I7', acknowledged, 0))
    end
  end
end
return 0
