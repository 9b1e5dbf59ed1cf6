-- Counts a canary up. In one step: an instance that is stopped between two would write an old count.
--
-- KEYS[1]: the canary.
-- ARGV[1]: how long it lives unless it is counted up (integer, s).
-- Reply: its count.
local call = redis.call
local count = (tonumber(call('GET', KEYS[1])) or 0) + 1
call('SET', KEYS[1], count, 'EX', ARGV[1])
return count
