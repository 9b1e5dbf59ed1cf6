-- Fixed window: one counter, forgotten at every multiple of the window since the epoch.
-- Twin of `src/algorithm/fixed_window.rs`: change both or neither.

--[quota]
local window, capacity = struct.unpack('<I6I7', packed)

--[load]
local tag, stop, used, settled, moved, wrong = 17, 0, 0, now, false, nil
-- The end by which the stored value expires.
local expires = 0
local raw = call('GET', key)
local counted = window
if raw then
  local found
  if #raw == 21 then found, counted, stop, used = struct.unpack('<BI6I7I7', raw) end
  if found ~= tag then
    counted, stop, used = window, 0, 0
    --@foreign
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
    -- A large step back: it counts on to its end, and for one window of new time at most.
    stop, moved = math.min(stop, now + counted), true
  end
end
if counted ~= window then stop = settled - settled % window + window end

--[told]
settled, stop, used

--[widths]
'<I7I7I7I7I7',

--[charge]
used = used + cost

--[refund]
local given = math.min(cost, used)
used = used - given

--[save]
local value = struct.pack('<BI6I7I7', 17, window, stop, used)
if expires == stop then
  -- In place, which keeps the time to live: half of what it costs to set it again.
  call('SETRANGE', key, '0', value)
else
  call('SET', key, value, 'PX', math.ceil((stop - now) / 1000) + 5000)
end
