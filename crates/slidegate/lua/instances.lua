-- Counts the instances that share the store. Each has a line in one table, which it renews.
--
-- KEYS[1]: the table.
-- ARGV[1]: this instance (hexadecimal digits).
-- ARGV[2]: how long a line counts, and the table is kept (integer, ms).
-- ARGV[3]: the largest number of lines (integer).
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
for instance, at in stored:gmatch('(%x+) (%d+)\n') do
  -- The clock may have been set back.
  at = math.min(at + 0, now)
  if instance ~= ARGV[1] and at > now - ARGV[2] and #lines < ARGV[3] + 0 then
    lines[#lines + 1] = instance .. string.format(' %.0f\n', at)
  end
end
call('SET', KEYS[1], table.concat(lines), 'PX', ARGV[2])
return #lines
