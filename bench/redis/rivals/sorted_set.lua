-- The usual exact log: one member of a sorted set for each request, scored by its time.
-- KEYS: the key. ARGV: window in microseconds, limit, a unique member, window in milliseconds.
-- Replies {1 if allowed, remaining}.
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
redis.call('ZREMRANGEBYSCORE', KEYS[1], 0, now - ARGV[1])
local used, limit = redis.call('ZCARD', KEYS[1]), tonumber(ARGV[2])
if used >= limit then return { 0, 0 } end
redis.call('ZADD', KEYS[1], now, ARGV[3])
redis.call('PEXPIRE', KEYS[1], ARGV[4])
return { 1, limit - used - 1 }
