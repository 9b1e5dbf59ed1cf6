-- The usual generic cell rate algorithm: one theoretical arrival time. KEYS: the key. ARGV:
-- microseconds between two requests, burst. Replies {1 if allowed, remaining, microseconds until a
-- denied request fits, microseconds until all has drained}.
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local interval, burst = tonumber(ARGV[1]), tonumber(ARGV[2])
local tat = tonumber(redis.call('GET', KEYS[1]) or now)
if tat < now then tat = now end
local room = burst * interval - (tat - now)
if room < interval then return { 0, 0, interval - room, tat - now } end
tat = tat + interval
redis.call('SET', KEYS[1], tat, 'PX', math.ceil((tat - now) / 1000))
return { 1, math.floor((room - interval) / interval), 0, tat - now }
