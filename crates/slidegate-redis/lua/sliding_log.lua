-- Sliding log: every charge with its time, exact to the microsecond, as (timestamp, cost) runs
-- packed in a ring. Twin of `src/algorithm/sliding_log.rs`: change both or neither. Layout:
-- docs/redis-layout.md.
--
-- The newest run is in the header, so charging it again writes only the header. Header and ring are
-- written in place, so a decision costs the same at any limit. A small log is read whole, so that
-- one write covers a new run and the header (measured by `bench/redis`).

--[quota]
local window, capacity, step, step_bits, runs, fills = struct.unpack('<I6I7I6BI2I2', packed)

--[settle]
local tag, settled, moved, wrong = 20, now, false, nil
-- Timestamps do not depend on the window.
local is_own = true
local ahead_bits, used, newest, oldest = 0, 0, 0, 0
local widths, stamp_bytes, cost_bytes, head, len, room, newest_cost, shift, expires
local chunk, chunk_from, chunk_to = nil, 0, 0
local pushed, pushed_cost
-- A ring for limits up to 32, without costs, ends at byte 171. Reading much more costs more than
-- the write that it saves.
local raw = call('GETRANGE', key, '0', fills <= 32 and '171' or '47')
if raw ~= '' then
  local found
  if #raw >= 48 then found, ahead_bits, used, newest, oldest = struct.unpack('<BBI7I7I7', raw) end
  if found ~= tag then
    ahead_bits, used = 0, 0
    --@foreign
    raw = ''
  end
end
if used > 0 then
  if now + step - 1 < newest then
    -- The quota had a longer step when the newest run was made, or the clock stepped back.
    --@rest
    local earliest = newest - 2 ^ ahead_bits + 1
    if now < earliest then
      if earliest - now <= (window < 1000000 and window or 1000000) then
        settled = earliest
      else
        -- A large step back of the clock: move the history along, as if no time had passed since
        -- the newest charge.
        local by = earliest - now
        newest, oldest, shift, moved = newest - by, math.max(oldest - by, 0), (shift + by) % 281474976710656, true
      end
    end
    -- All charges of the run were made before now. Later ones join it, so it must not count longer
    -- than they do.
    local stamp = math.ceil(settled / step) * step
    if stamp < newest and len > 0 then
      --@ring
      stamp = math.max(stamp, (run_at(len - 1)))
    end
    if stamp < newest then
      if len == 0 then oldest = stamp end
      -- Only a charge writes this, unless the clock was set back.
      newest, ahead_bits = stamp, step_bits
    end
  end
  if oldest + window <= settled then
    if newest + window <= settled then
      used = 0
    else
      --@rest
      --@ring
      while oldest + window <= settled do
        local _, cost = run_at(0)
        used, head, len = used - cost, (head + 1) % room, len - 1
        oldest = len > 0 and run_at(0) or newest
      end
    end
  end
end
-- The time that the low bytes of timestamps in the ring are relative to.
local anchor = newest

--[rest]
-- Reads the rest of the header, which most denials do not need.
if not widths then
  widths, head, len, room, newest_cost, shift, expires = 64, 0, 0, 0, 0, 0, 0
  if raw ~= '' then
    widths, head, len, room, newest_cost, shift, expires = struct.unpack('<BI2I2I2I7I6I5', raw, 24)
  end
  cost_bytes = widths % 16
  stamp_bytes = (widths - cost_bytes) / 16
end

--[ring]
-- Timestamp and cost of the run at this place in the ring; 0 is the oldest.
local run_format = '<I' .. stamp_bytes .. (cost_bytes > 0 and 'I' .. cost_bytes or '')
local run_bytes, span = stamp_bytes + cost_bytes, stamp_bytes == 4 and 4294967296 or 281474976710656
local function run_at(place)
  place = (head + place) % room
  if place < chunk_from or place >= chunk_to then
    chunk_from, chunk_to = place, math.min(place + 64, room)
    chunk = call('GETRANGE', key, 48 + place * run_bytes, 47 + chunk_to * run_bytes)
  end
  local low, cost = struct.unpack(run_format, chunk, (place - chunk_from) * run_bytes + 1)
  return math.max(newest - (newest + shift - low) % span, 0), cost_bytes > 0 and cost or 1
end

--[numbers]
settled, used, newest, oldest

--[widths]
'<I7I7I7I7I7I7',

--[needed]
-- Reports the oldest runs too, as many as hold `needed` cost: when they expire, a denied cost fits.
if needed > 1 and used > 0 then
  --@list
  --@rest
  --@ring
  local place, sum = 0, 0
  while place < len and sum < needed do
    local stamp, cost = run_at(place)
    numbers[#numbers + 1] = stamp
    numbers[#numbers + 1] = cost
    place, sum = place + 1, sum + cost
  end
  if sum < needed then
    numbers[#numbers + 1] = newest
    numbers[#numbers + 1] = newest_cost
  end
end

--[charge]
--@rest
if used > 0 and settled <= newest then
  -- In the same step as the newest run.
  newest_cost = newest_cost + cost
else
  local stamp = math.ceil(settled / step) * step
  if used == 0 then
    head, len, oldest, newest_cost = 0, 0, stamp, cost
  elseif len + 1 < runs then
    pushed, pushed_cost, newest_cost = newest, newest_cost, cost
  else
    -- The log is full, by penalties or because slots were reduced: the newest run counts a little
    -- longer.
    if len == 0 then oldest = stamp end
    newest_cost = newest_cost + cost
  end
  newest, ahead_bits = stamp, step_bits
end
used = used + cost

--[refund]
-- The oldest charges are refunded first: the rest counts at least as long as the latest charges.
local refunded = math.min(cost, used)
if refunded == used then
  used = 0
else
  --@rest
  --@ring
  local left = refunded
  while left > 0 do
    if len == 0 then
      newest_cost, used, left = newest_cost - left, used - left, 0
    else
      local _, oldest_cost = run_at(0)
      if oldest_cost > left then
        call('SETRANGE', key, 48 + head * run_bytes + stamp_bytes,
          struct.pack('<I' .. cost_bytes, oldest_cost - left))
        -- The ring in `raw` is out of date; a rewrite reads it again.
        raw = raw:sub(1, 48)
        used, left = used - left, 0
      else
        left, used, head, len = left - oldest_cost, used - oldest_cost, (head + 1) % room, len - 1
        oldest = len > 0 and run_at(0) or newest
      end
    end
  end
end

--[ttl]
-- Two windows, so that most charges in place need not renew it, and four seconds: a charge may
-- count up to a step longer than a window, and a second longer if the clock was set back.
local ttl_ms = math.floor(math.max(until_us - now, math.min(until_us - now + window, 2 * window)) / 1000) + 4000

--[save]
--@rest
local old_run_bytes, size = stamp_bytes + cost_bytes, room * (stamp_bytes + cost_bytes)
local old_stamp_bytes, old_cost_bytes = stamp_bytes, cost_bytes
if window + step >= 4294967296 then stamp_bytes = 6 end
if pushed and pushed_cost > 1 then
  local needs = pushed_cost < 256 and 1 or pushed_cost < 65536 and 2 or pushed_cost < 4294967296 and 4 or 7
  if needs > cost_bytes then cost_bytes = needs end
end
local run_bytes, more, run = stamp_bytes + cost_bytes, 0, ''
if pushed then
  local low = (pushed + shift) % (stamp_bytes == 4 and 4294967296 or 281474976710656)
  more = 1
  if cost_bytes == 0 then
    run = struct.pack(stamp_bytes == 4 and '<I4' or '<I6', low)
  else
    run = struct.pack('<I' .. stamp_bytes .. 'I' .. cost_bytes, low, pushed_cost)
  end
end
local until_us = (newest > now and newest or now) + window
if raw == '' or run_bytes ~= old_run_bytes or len + more > room then
  local ring = ''
  if len > 0 then
    ring = #raw == 48 + size and raw:sub(49) or call('GETRANGE', key, '48', '-1')
    if #ring ~= size then return redis.error_reply('SLIDEGATE value is damaged: its ring is cut off') end
    ring = (ring .. ring):sub(head * old_run_bytes + 1, (head + len) * old_run_bytes)
    if run_bytes ~= old_run_bytes then
      local old_format = '<I' .. old_stamp_bytes .. (old_cost_bytes > 0 and 'I' .. old_cost_bytes or '')
      local new_format = '<I' .. stamp_bytes .. (cost_bytes > 0 and 'I' .. cost_bytes or '')
      local old_span = old_stamp_bytes == 4 and 4294967296 or 281474976710656
      local new_span = stamp_bytes == 4 and 4294967296 or 281474976710656
      local wide = {}
      for place = 1, len do
        local low, cost = struct.unpack(old_format, ring, (place - 1) * old_run_bytes + 1)
        low = anchor + shift - (anchor + shift - low) % old_span
        cost = old_cost_bytes > 0 and cost or 1
        wide[place] = cost_bytes > 0 and struct.pack(new_format, low % new_span, cost)
          or struct.pack(new_format, low % new_span)
      end
      ring = table.concat(wide)
    end
  end
  len, head = len + more, 0
  -- Room for twice as many runs plus three, but no more than the limit can fill besides the newest.
  -- Redis' allocation for the header has room for three.
  room = math.max(math.min(len * 2 + 3, fills - 1), len)
  local slack = string.rep('\0', (room - len) * run_bytes)
  --@ttl
  expires = math.floor((now + ttl_ms * 1000) / 1000000)
  call('SET', key, struct.pack('<BBI7I7I7BI2I2I2I7I6I5', 20, ahead_bits, used, newest, oldest,
    stamp_bytes * 16 + cost_bytes, 0, len, room, newest_cost, shift, expires) .. ring .. run .. slack, 'PX', ttl_ms)
else
  local between = ''
  if pushed then
    local place = 48 + (head + len) % room * run_bytes
    if #raw == 48 + size then
      between = raw:sub(49, place) .. run
    else
      -- A write past the end of a truncated ring would fill the gap with zeros. So the length is
      -- read before the last place is written, and a value that a write finds too short is marked
      -- damaged.
      local is_whole = place + run_bytes < 48 + size or call('STRLEN', key) == 48 + size
      if not is_whole or call('SETRANGE', key, place, run) ~= 48 + size then
        call('SETRANGE', key, '0', '\31')
        return redis.error_reply('SLIDEGATE value is damaged: its ring is cut off')
      end
    end
    len = len + 1
  end
  -- `expires` is rounded down. A TTL that is too short loses usage. It is too long if the window was
  -- shortened or the clock was set back.
  if until_us > expires * 1000000 or (expires + 1) * 1000000 > now + 2 * window + 5000000 then
    --@ttl
    call('PEXPIRE', key, ttl_ms)
    expires = math.floor((now + ttl_ms * 1000) / 1000000)
  end
  call('SETRANGE', key, '0', struct.pack('<BBI7I7I7BI2I2I2I7I6I5', 20, ahead_bits, used, newest, oldest,
    stamp_bytes * 16 + cost_bytes, head, len, room, newest_cost, shift, expires) .. between)
end

--[still]
return now - made < window and cost or 0
