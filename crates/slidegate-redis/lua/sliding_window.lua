-- Sliding window: two counters, the older one weighted by its overlap with the window, rounded up.
-- Twin of `src/algorithm/sliding_window.rs`: change both or neither.

--[quota]
-- `head` is the first three bytes of a compact value of this window; 0 if it has no compact form.
local window, capacity, head = struct.unpack('<I6I7I3', packed)

--[settle]
-- `stop` is the end of the window that `current` counts in.
local tag, stop, previous, current, settled, moved, wrong = 18, 0, 0, 0, now, false, nil
-- The counters under another window, which refunds leave them in.
local own_stop, own_previous, own_current
-- The end that the stored value's TTL was set for.
local expires = 0
local raw = call('GET', key)
local counted = window
if raw then
  local found
  if #raw == 12 then
    found, stop, previous = struct.unpack('<I3I4I5', raw)
    stop, current = stop * 1000000, previous % 1048576
    previous = (previous - current) / 1048576
    if found ~= head or head == 0 then
      --@counted
    end
  elseif #raw == 28 then
    found, counted, stop, previous, current = struct.unpack('<BI6I7I7I7', raw)
    found = found == tag
  end
  if not found then
    counted, stop, previous, current = window, 0, 0, 0
    --@foreign
  end
  if current > 0 and counted == window then expires = stop end
end
local current_stop = now - now % counted + counted
local restart
if current_stop ~= stop then
  if stop - counted == current_stop and current_stop - now <= (counted < 1000000 and counted or 1000000) then
    settled = current_stop
  elseif now < stop then
    -- A large step back of the clock.
    restart, moved = current_stop, true
  else
    previous = stop == current_stop - counted and current or 0
    current, stop = 0, current_stop
  end
end
if restart then
  -- All usage counts as charged in the window that ends then.
  current = math.min(current + previous, math.max(capacity, current, previous))
  previous, stop = 0, restart
end
local used = current
if previous > 0 then
  local product = previous * (stop - settled)
  local weighted = math.ceil(product / counted)
  if product >= 9007199254740992 then
    --@mul_div
    local rest
    weighted, rest = mul_div(previous, stop - settled, counted)
    if rest > 0 then weighted = weighted + 1 end
  end
  used = math.min(current + weighted, 9007199254740991)
end
local is_own = counted == window
if not is_own then
  -- What counts now counts as charged in the window of the new length. Only a charge writes that.
  own_stop, own_previous, own_current = stop, previous, current
  current, previous, stop = used, 0, settled - settled % window + window
end

--[numbers]
settled, stop, previous, current

--[widths]
'<I7I7I7I7I7I7',

--[charge]
current, used = current + cost, used + cost

--[refund]
local refunded = math.min(cost, used)
local from_current = math.min(refunded, current)
current, used = current - from_current, used - refunded
if refunded > from_current then
  -- The older counter's largest value whose weighted part is `used`, rounded down.
  --@mul_div
  local kept = mul_div(used, window, stop - settled)
  previous = math.min(previous, kept)
end

--[refund_kept]
if not is_own and refunded > 0 and used > 0 and not moved then
  local from_current = math.min(refunded, own_current)
  own_current = own_current - from_current
  if refunded > from_current then
    --@mul_div
    local kept = mul_div(used, counted, own_stop - settled)
    own_previous = math.min(own_previous, kept)
  end
  if #raw == 12 then
    call('SETRANGE', key, '3', struct.pack('<I4I5', own_stop / 1000000, own_previous * 1048576 + own_current))
  else
    call('SETRANGE', key, '7', struct.pack('<I7I7I7', own_stop, own_previous, own_current))
  end
  return refunded
end

--[save]
local value
if head > 0 and previous < 1048576 and current < 1048576 and stop < 4294967296000000 then
  value = struct.pack('<I3I4I5', head, stop / 1000000, previous * 1048576 + current)
else
  value = struct.pack('<BI6I7I7I7', 18, window, stop, previous, current)
end
if expires == stop and #value == #raw then
  -- In place, which keeps the TTL: half the cost of `SET`.
  call('SETRANGE', key, '0', value)
else
  -- `stop` may be up to a second more than a window ahead.
  local ttl_us = stop - now
  if current > 0 then ttl_us = ttl_us + window end
  call('SET', key, value, 'PX', math.floor(ttl_us / 1000) + 4000)
end

--[still]
return math.floor(made / window) == math.floor(now / window) and cost or 0
