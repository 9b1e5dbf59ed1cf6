-- The server's clock where scripts may not call TIME: what stands instead of `local time = call('TIME')`.
--
-- A key that expires tells the time as the difference between when and in how long it does; both are in
-- milliseconds. A key without an expiry lends none, so another one in its slot is made for a second.
local time
do
  local key, left = KEYS[1], call('PTTL', KEYS[1])
  if left < 0 then
    key, left = 'sg1:~clock:{' .. (key:match('{([^}]+)}') or key) .. '}', 1000
    call('SET', key, '', 'PX', '1000')
  end
  local at = call('PEXPIRETIME', key) - left
  time = { math.floor(at / 1000), at % 1000 * 1000 }
end
