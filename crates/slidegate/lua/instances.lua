-- Counts the instances that share the store. Each has a line in one table, which it renews, and may
-- publish a record about itself.
--
-- KEYS[1]: the table.
-- KEYS[2]: the record of this instance, in the slot of the table. Absent: it publishes none.
-- ARGV[1]: this instance (hexadecimal digits).
-- ARGV[2]: how long a line counts, and the table and the record are kept (integer, ms).
-- ARGV[3]: the largest number of lines (integer).
-- ARGV[4]: the record (bytes), with KEYS[2].
-- Reply: how many instances there are, this one included.
-- Layout: docs/redis-layout.md. Rust twin: `src/store/redis/admin/instances.rs`. A value that is not such
--   a table is an error and stays unchanged.
local call = redis.call
local time = call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local stored = call('GET', KEYS[1]) or ''
if stored ~= '' and not stored:find('^%x+ %d+\n') then
  return redis.error_reply('SLIDEGATE value is not a table of instances')
end
local lines = { ARGV[1] .. string.format(' %.0f\n', now) }
local oldest, count, most = now - ARGV[2], 1, ARGV[3] + 0
for line, instance, at in stored:gmatch('((%x+) (%d+)\n)') do
  at = at + 0
  if instance ~= ARGV[1] and at > oldest and count < most then
    if at > now then
      -- The clock was set back.
      line = instance .. string.format(' %.0f\n', now)
    end
    count = count + 1
    lines[count] = line
  end
end
call('SET', KEYS[1], table.concat(lines), 'PX', ARGV[2])
if KEYS[2] then
  call('SET', KEYS[2], ARGV[4], 'PX', ARGV[2])
end
return count
