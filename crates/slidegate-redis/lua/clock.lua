-- Reads the server's clock where scripts may not call TIME. Replaces `local time = call('TIME')`.
--
-- The time is the key's expiry (PEXPIRETIME) minus its remaining TTL (PTTL), both in milliseconds. A
-- missing key is created and deleted for this, because a script may be allowed no other key. A key
-- without an expiry was written by another program: keys of slidegate always expire.
local time
do
  local key, left = KEYS[1], call('PTTL', KEYS[1])
  if left == -1 then return redis.error_reply('SLIDEGATE value is without an expiry') end
  local is_absent = left == -2
  if is_absent then
    left = 1000
    call('SET', key, '', 'PX', '1000')
  end
  local at = call('PEXPIRETIME', key) - left
  if is_absent then call('DEL', key) end
  time = { math.floor(at / 1000), at % 1000 * 1000 }
end
