-- The server's time.
--
-- KEYS[1]: any key of the slot to ask.
-- Reply: seconds and microseconds.
local call = redis.call
local time = call('TIME')
return { time[1] + 0, time[2] + 0 }
