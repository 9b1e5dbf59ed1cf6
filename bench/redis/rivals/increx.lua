-- What `INCREX key BYINT n LBOUND 0 UBOUND limit PX window ENX` of Redis 8.8 and Valkey 9.2 does, for
-- servers without that command.
-- KEYS: the key. ARGV: n, limit, window in milliseconds.
-- Replies {the counter, what was added}: 0 if the counter would leave its bounds.
local counter, n = tonumber(redis.call('GET', KEYS[1]) or '0'), tonumber(ARGV[1])
if counter + n > tonumber(ARGV[2]) or counter + n < 0 then return { counter, 0 } end
counter = redis.call('INCRBY', KEYS[1], ARGV[1])
if redis.call('PTTL', KEYS[1]) < 0 then redis.call('PEXPIRE', KEYS[1], ARGV[3]) end
return { counter, n }
