-- Counts the instances that share the store. Each has a line in one table, which it renews, and may
-- publish a record about itself.
--
-- KEYS[1]: the table.
-- KEYS[2]: the record of this instance, in the slot of the table; absent if it publishes none.
-- ARGV[1]: this instance (hexadecimal digits).
-- ARGV[2]: how long a line counts; also the TTL of the table and the record (integer, ms).
-- ARGV[3]: the largest number of lines (integer).
-- ARGV[4]: the record (bytes), with KEYS[2].
-- Reply: the number of instances, this one included, and the number of foreign bytes: for a string at
--   most the size of a table, for another type 1.
-- Layout: docs/redis-layout.md. Rust twin: `src/admin/instances.rs`. Foreign bytes do not count as
--   instances and are removed. Only the beginning of a longer string is read.
local call = redis.call
local time = call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local foreign = 0
local stored = redis.pcall('GETRANGE', KEYS[1], 0, 32 * ARGV[3])
if type(stored) ~= 'string' then
  stored, foreign = '', 1
end
local lines = { ARGV[1] .. string.format(' %.0f\n', now) }
local oldest, count, most, known = now - ARGV[2], 1, ARGV[3] + 0, 0
for line, instance, at in stored:gmatch('((%x+) (%d+)\n)') do
  at = at + 0
  if #instance == #ARGV[1] then
    known = known + #line
    if instance ~= ARGV[1] and at > oldest and count < most then
      if at > now then
        -- The clock was set back.
        line = instance .. string.format(' %.0f\n', now)
      end
      count = count + 1
      lines[count] = line
    end
  end
end
call('SET', KEYS[1], table.concat(lines), 'PX', ARGV[2])
if KEYS[2] then
  call('SET', KEYS[2], ARGV[4], 'PX', ARGV[2])
end
return { count, foreign + #stored - known }
