-- The script of the release that wrote layout 1, as it was: it has to meet later values with an error.
local call, argv = redis.call, ARGV
local time = call('TIME')
local now = time[1] * 1000000 + time[2]
if now > argv[1] + 0 then return { -1, now } end
local key, packed = KEYS[1], argv[2]
local window, capacity = struct.unpack('<I6I7', packed)
local tag, stop, previous, current, settled, moved, wrong = 18, 0, 0, 0, now, false, nil
local expires = 0
local raw = call('GET', key)
local counted = window
if raw then
  local found
  if #raw == 28 then found, counted, stop, previous, current = struct.unpack('<BI6I7I7I7', raw) end
  if found ~= tag then
    counted, stop, previous, current = window, 0, 0, 0
local first = raw:byte(1)
if first == tag or first == 31 then
  wrong = 'damaged: it has ' .. #raw .. ' bytes'
elseif not first or first < 17 or first > 20 then
  wrong = 'not of layout 1: its first byte is ' .. tostring(first)
end
  end
  if current > 0 and counted == window then expires = stop end
end
local here = now - now % counted + counted
local afresh
if here ~= stop then
  if stop - counted == here and here - now <= (counted < 1000000 and counted or 1000000) then
    settled = here
  elseif now < stop then
    afresh, moved = here, true
  else
    previous = stop == here - counted and current or 0
    current, stop = 0, here
  end
end
if counted ~= window then afresh = settled - settled % window + window end
if afresh then
  current = math.min(current + previous, math.max(capacity, current, previous))
  previous, stop = 0, afresh
end
local used = current
if previous > 0 then
  local product = previous * (stop - settled)
  local weighted = math.ceil(product / window)
  if product >= 9007199254740992 then
local function mul_div(a, b, c)
  local product = a * b
  if product < 9007199254740992 then
    local quotient = math.floor(product / c)
    return quotient, product - quotient * c
  end
  local whole = math.floor(b / c)
  local part = b - whole * c
  local quotient, rest, left = 0, 0, a
  local place = 562949953421312
  while place >= 1 do
    local digit = math.floor(left / place)
    left = left - digit * place
    rest = rest * 128 + digit * part
    local share = math.floor(rest / c)
    rest = rest - share * c
    quotient = quotient * 128 + share
    place = place / 128
  end
  return a * whole + quotient, rest
end
    local rest
    weighted, rest = mul_div(previous, stop - settled, window)
    if rest > 0 then weighted = weighted + 1 end
  end
  used = math.min(current + weighted, 9007199254740991)
end
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
settled, stop, previous, current
}
if needed > used then needed = used end
if cost > 0 then
current, used = current + cost, used + cost
local value = struct.pack('<BI6I7I7I7', 18, window, stop, previous, current)
if expires == stop then
  call('SETRANGE', key, '0', value)
else
  local lives = stop - now
  if current > 0 then lives = lives + window end
  call('SET', key, value, 'PX', math.ceil(lives / 1000) + 5000)
end
elseif moved and used > 0 then
local value = struct.pack('<BI6I7I7I7', 18, window, stop, previous, current)
if expires == stop then
  call('SETRANGE', key, '0', value)
else
  local lives = stop - now
  if current > 0 then lives = lives + window end
  call('SET', key, value, 'PX', math.ceil(lives / 1000) + 5000)
end
end
return told
