-- Token bucket: every charge fills the bucket, and it drains by `limit` per window.
-- Twin of `src/algorithm/token_bucket.rs`: change both or neither.

--[quota]
local window, limit, capacity = struct.unpack('<I6I7I7', packed)

--[settle]
-- The content at the time `at`: `level` is whole cost, `fraction` the rest in cost times
-- microseconds, less than the window.
local tag, at, level, fraction, settled, moved, wrong = 19, now, 0, 0, now, false, nil
local rate = limit > 0 and limit or 1
-- Whether the content is as this quota counts it; whether it was counted under another window.
local is_own, is_other = true, false
-- Content under another window that this quota does not count.
local cut = 0
local raw = call('GET', key)
if raw then
  local found, counted
  if #raw == 27 then found, counted, at, level, fraction = struct.unpack('<BI6I7I7I6', raw) end
  if found ~= tag then
    counted, at, level, fraction = window, now, 0, 0
    --@foreign
  end
  is_other = counted ~= window
  is_own = not is_other
  --@bound
  if now < at then
    if (level > 0 or fraction > 0) and at - now <= (counted < 1000000 and counted or 1000000) then
      settled = at
    else
      at, moved = now, true
    end
  else
    local drained = (now - at) * rate
    local whole = math.floor(drained / counted)
    local part = drained - whole * counted
    if drained >= 9007199254740992 then
      --@mul_div
      whole, part = mul_div(now - at, rate, counted)
    end
    at, part = now, fraction - part
    if part < 0 then
      part, whole = part + counted, whole + 1
    end
    if level < whole then
      level, fraction = 0, 0
    else
      level, fraction = level - whole, part
    end
  end
  -- Under another window a fraction rounds up to a whole. Only a charge writes that.
  if counted ~= window and fraction > 0 then level, fraction = level + 1, 0 end
end
local used = fraction > 0 and level + 1 or level

--[numbers]
settled, level, fraction

--[widths]
'<I7I7I7I7I7',

--[charge]
level, used = level + cost, used + cost

--[refund]
local refunded = math.min(cost, used)
-- What this quota does not count is refunded first.
local counted_cost = math.max(refunded - cut, 0)
if counted_cost <= level then
  level = level - counted_cost
else
  level, fraction = 0, 0
end
used = fraction > 0 and level + 1 or level

--[refund_kept]
if is_other and refunded > 0 and used > 0 and not moved then
  local _, _, _, stored = struct.unpack('<BI6I7I7', raw)
  call('SETRANGE', key, '14', struct.pack('<I7', stored - refunded))
  return refunded
end

--[most]
-- The maximum usage of a key: one window's drain above the capacity.
local most = math.min(capacity + rate, 9007199254740991)

--[bound]
-- Content above the maximum, which a lowered limit may leave, does not count.
do
  --@most
  if level > most or level == most and fraction > 0 then
    if is_other then cut = level - most end
    is_own, level, fraction = false, most, 0
  end
end

--[save]
-- The TTL is the time until it is empty and up to five seconds more. `at` may be a second ahead.
local ttl_us = used * window / rate + at - now
-- A large burst may take longer to drain than Redis takes: 2^61, some 73,000 years.
if ttl_us > 2305843009213693952 then ttl_us = 2305843009213693952 end
call('SET', key, struct.pack('<BI6I7I7I6', 19, window, at, level, fraction),
  'PX', math.floor(ttl_us / 1000) + 4000)

--[still]
local drained, rest = mul_div(math.max(now - made, 0), limit, window)
if rest > 0 then drained = drained + 1 end
return math.max(cost - drained, 0)
