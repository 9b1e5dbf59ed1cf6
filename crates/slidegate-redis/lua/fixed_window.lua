-- Fixed window: one counter, reset at every multiple of the window since the epoch, or at dates.
-- Twin of `src/algorithm/fixed_window.rs`: change both or neither.

--[quota]
-- `head` is the first three bytes of a compact value of this window; 0 if it has no compact form.
local window, capacity, head = struct.unpack('<I6I7I3', packed)
-- A window of 2^47 or more is the code of a calendar. Then the quota includes borders: the start and
-- the end of a window, and the ends of the next two.
local first, second, third, fourth
-- Maximum time from a stored end to the same border under other time zone data.
local slack = 0
-- How long the total of an ended window is kept; nil if it is not. `keeps_totals_us` in `src/quota/stored.rs`.
local keeps
if window >= 140737488355328 then
  first, second, third, fourth = struct.unpack('<I7I7I7I7', packed, 17)
  local half = math.floor((third - second) / 2)
  slack = math.min(half, 86400000000)
  if window >= 211106232532992 then keeps = math.min(half, 604800000000) end
end

--[settle]
-- `stop` is the end of the window that `used` counts in.
local tag, stop, used, settled, moved, wrong = 17, 0, 0, now, false, nil
-- The end that the stored value's TTL was set for.
local expires = 0
-- The end and the total of a window that has ended; 0 if it was acknowledged. See `closed.lua`.
local ended, total = 0, 0
local raw = call('GET', key)
local counted = window
if raw then
  local found
  if #raw == 12 then
    found, stop, used = struct.unpack('<I3I4I5', raw)
    stop = stop * 1000000
    if found ~= head or head == 0 then
      --@counted
    end
  elseif #raw == 21 or #raw == 35 then
    found, counted, stop, used = struct.unpack('<BI6I7I7', raw)
    found = found == tag
    if #raw == 35 and counted == window then ended, total = struct.unpack('<I7I7', raw, 22) end
  end
  if not found then
    counted, stop, used = window, 0, 0
    --@foreign
  end
  if counted == window then expires = stop end
end
local current_stop, next_stop, latest_stop
if counted < 140737488355328 then
  current_stop = now - now % counted + counted
  next_stop, latest_stop = current_stop + counted, now + counted
elseif counted == window then
  current_stop, next_stop = third, fourth
  if now < first then
    current_stop, next_stop = first, second
  elseif now < second then
    current_stop, next_stop = second, third
  end
  latest_stop = next_stop
  -- The stored end may not be a border here, because another instance has other time zone data. The
  -- later one counts.
  local border = stop <= first and first or stop <= second and second or stop <= third and third
    or stop <= fourth and fourth or stop
  if border - stop <= slack then stop = border end
elseif now < stop then
  -- Usage under another calendar counts until its end.
  current_stop = stop
else
  current_stop = 0
end
if current_stop ~= stop then
  if now >= stop then
    if used > 0 and counted == window and ended ~= stop then ended, total = stop, used end
    stop, used = current_stop, 0
  elseif stop == next_stop and current_stop - now <= (counted < 1000000 and counted or 1000000) then
    settled = current_stop
  else
    -- A large step back of the clock: the counter stays until its end, at most one window from now.
    moved = stop > latest_stop
    stop = math.min(stop, latest_stop)
  end
end
local is_own = counted == window
if not is_own then
  -- Only a charge writes this: until then the key stays in its window.
  stop = settled - settled % window + window
  if third then stop = settled < first and first or settled < second and second or third end
end

--[numbers]
settled, stop, used

--[widths]
'<I7I7I7I7I7',

--[charge]
used = used + cost

--[refund]
local refunded = math.min(cost, used)
used = used - refunded

--[refund_kept]
if keeps and refunded > 0 and used == 0 and total > 0 then
  save()
  return refunded
end
if not is_own and refunded > 0 and used > 0 and not moved then
  if #raw == 12 then
    call('SETRANGE', key, '7', struct.pack('<I5', used))
  else
    call('SETRANGE', key, '14', struct.pack('<I7', used))
  end
  return refunded
end

--[save]
local value
if head > 0 and used < 1099511627776 and stop % 1000000 == 0 and stop < 4294967296000000 then
  value = struct.pack('<I3I4I5', head, stop / 1000000, used)
else
  value = struct.pack('<BI6I7I7', 17, window, stop, used)
end
if keeps then value = value .. struct.pack('<I7I7', ended, total) end
if expires == stop and #value == #raw then
  -- In place, which keeps the TTL: half the cost of `SET`.
  call('SETRANGE', key, '0', value)
else
  call('SET', key, value, 'PX', math.ceil((stop - now + slack + (keeps or 0)) / 1000) + 5000)
end

--[still]
if first then return made >= (now < first and 0 or now < second and first or second) and cost or 0 end
return math.floor(made / window) == math.floor(now / window) and cost or 0
