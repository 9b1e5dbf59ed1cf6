-- The script of the release that wrote layout 1, as it was: it has to meet later values with an error.
local call, argv = redis.call, ARGV
local time = call('TIME')
local now = time[1] * 1000000 + time[2]
if now > argv[1] + 0 then return { -1, now } end
local key, packed = KEYS[1], argv[2]
local window, capacity = struct.unpack('<I6I7', packed)
local tag, stop, used, settled, moved, wrong = 17, 0, 0, now, false, nil
local expires = 0
local raw = call('GET', key)
local counted = window
if raw then
  local found
  if #raw == 21 then found, counted, stop, used = struct.unpack('<BI6I7I7', raw) end
  if found ~= tag then
    counted, stop, used = window, 0, 0
local first = raw:byte(1)
if first == tag or first == 31 then
  wrong = 'damaged: it has ' .. #raw .. ' bytes'
elseif not first or first < 17 or first > 20 then
  wrong = 'not of layout 1: its first byte is ' .. tostring(first)
end
  end
  expires = stop
end
local here = now - now % counted + counted
if here ~= stop then
  if now >= stop then
    stop, used = here, 0
  elseif stop - counted == here and here - now <= (counted < 1000000 and counted or 1000000) then
    settled = here
  else
    stop, moved = math.min(stop, now + counted), true
  end
end
if counted ~= window and used > 0 then stop = settled - settled % window + window end
if wrong then return redis.error_reply('SLIDEGATE value is ' .. wrong) end
local cost, charged, needed = 0, 0, 0
for request = 3, #argv, 2 do
  local asked, requests = argv[request] + 0, argv[request + 1]
  local over = used + cost + asked - capacity
  if asked == 0 then
    charged = charged + (requests or 1)
  elseif over > 0 then
    if over > needed then needed = over end
  elseif not requests then
    cost, charged = cost + asked, charged + 1
  else
    local fit = math.floor(-over / asked) + 1
    if fit < requests + 0 then
      needed = math.max(needed, over + fit * asked)
    else
      fit = requests + 0
    end
    cost, charged = cost + fit * asked, charged + fit
  end
end
local told = {
  charged, now,
settled, stop, used
}
if needed > used then needed = used end
if cost > 0 then
used = used + cost
local value = struct.pack('<BI6I7I7', 17, window, stop, used)
if expires == stop then
  call('SETRANGE', key, '0', value)
else
  call('SET', key, value, 'PX', math.ceil((stop - now) / 1000) + 5000)
end
elseif moved and used > 0 then
local value = struct.pack('<BI6I7I7', 17, window, stop, used)
if expires == stop then
  call('SETRANGE', key, '0', value)
else
  call('SET', key, value, 'PX', math.ceil((stop - now) / 1000) + 5000)
end
end
return told
