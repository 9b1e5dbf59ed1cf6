-- The usual fixed window: a counter that expires.
-- KEYS: the key. ARGV: window in milliseconds, limit.
-- Replies {1 if allowed, usage including denied requests}.
local used = redis.call('INCR', KEYS[1])
if used == 1 then redis.call('PEXPIRE', KEYS[1], ARGV[1]) end
return { used <= tonumber(ARGV[2]) and 1 or 0, used }
