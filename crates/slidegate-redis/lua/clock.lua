-- The server's clock where scripts may not call TIME: what stands instead of `local time = call('TIME')`.
--
-- A key that expires tells the time as the difference between when and in how long it does; both are in
-- milliseconds. A key that does not exist is made and deleted for this, as a script may be allowed no
-- other key. A key without an expiry was written by another program: those of slidegate expire.
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
