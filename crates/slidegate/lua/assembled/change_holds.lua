-- Assembled from the files of `lua/` that are named below. Do not edit: change those and run
-- SLIDEGATE_ASSEMBLE_LUA=1 cargo test -p slidegate --features redis assembled
-- Sent without comments; line NN here is line NN + 1 in an error of the server.

-- change_holds.lua
--
-- Settles, extends or cancels holds: those of one reservation, each on a key of its own.
--
-- KEYS: the keys; then for each the key of its usage while it has holds.
-- ARGV[1]: the latest server time at which the call may still charge (integer, us). Then for each key
--   - the letter of its algorithm,
--   - its quota, packed as the piece `quota` of the algorithm unpacks it, and how long its usage
--     lasts after its last hold (7 bytes, ms),
--   - the change, packed: the hold's id (8 bytes), the number of the change, the total cost, its time
--     (us), what was held in all, its end (us), whether it is dropped at its end, and when it was
--     made (us).
-- Reply: for each key {status, cost, numbers}: cost is what was charged or refunded, or what did not
--   fit; the numbers are those of `decide.lua` after the change; of a hold that was extended to a
--   cost, fourth, what it held in all before. {-1, now} if the call is too late.
-- Layout: docs/redis-layout.md. Rust twin: `HeldKey::change` in `src/algorithm/held.rs`.

-- holds.lua
--
-- Holds: cost that is set aside on a key until it is settled. Twin of `src/hold.rs` and
-- `src/algorithm/held.rs`: change both or neither. Layout: docs/redis-layout.md.
--
-- A key with holds is their table, and its usage is moved to a key of its own, in the same slot. A
-- script that knows no holds refuses the table, so it cannot overlook what is held; the store then
-- calls one that does. With the last hold the usage is moved back.

-- sliding_log.lua
--
-- Sliding log: every charge with its time, exact to the microsecond, as (timestamp, cost) runs
-- packed in a ring. Twin of `src/algorithm/sliding_log.rs`: change both or neither. Layout:
-- docs/redis-layout.md.
--
-- The newest run is in the header, so charging it again writes only the header. Header and ring are
-- written in place, so a decision costs the same at any limit. A small log is read whole, so that
-- one write covers a new run and the header (measured by `bench/redis`).

-- sliding_window.lua
--
-- Sliding window: two counters, the older one weighted by its overlap with the window, rounded up.
-- Twin of `src/algorithm/sliding_window.rs`: change both or neither.

-- fixed_window.lua
--
-- Fixed window: one counter, reset at every multiple of the window since the epoch.
-- Twin of `src/algorithm/fixed_window.rs`: change both or neither.

-- token_bucket.lua
--
-- Token bucket: every charge fills the bucket, and it drains by `limit` per window.
-- Twin of `src/algorithm/token_bucket.rs`: change both or neither.

-- shared.lua
--
-- Pieces that the algorithms share. In the files of `lua/`, a piece begins at a line `--[name]`,
-- and a line `--@name` includes that piece. `lua/assembled/` has the whole scripts.
--
-- A script is a straight line of pieces rather than functions over tables, because creating those
-- costs more than the rest of a decision. Numbers are integers, in microseconds or cost, below
-- 2^53: there a double is exact, and so is the floor of a quotient of two such numbers. Constant
-- arguments of commands are text, because Redis takes a quarter of a microsecond to format a
-- number.

local call, argv = redis.call, ARGV
local time = call('TIME')
local now = time[1] * 1000000 + time[2]
if now > argv[1] + 0 then return { -1, now } end
local opens = {}
-- [opens]
-- The usage of a key, and the functions that report and change it.
opens.L = function(key, now, packed)
  -- [quota]
  local window, capacity, step, step_bits, runs, fills = struct.unpack('<I6I7I6BI2I2', packed)
  -- [settle]
  local tag, settled, moved, wrong = 20, now, false, nil
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
      -- [foreign]
      -- `raw` is not a valid value of this algorithm, whose tag is `tag`. A value of another algorithm is
      -- ignored: the key starts afresh. The first byte 31 marks a log that was found truncated.
      local first = raw:byte(1)
      if not first or not (first >= 17 and first <= 20 or first == 33 or first == 34 or first == 31) then
        wrong = 'not of layout 1 or 2: its first byte is ' .. tostring(first)
      elseif first % 16 == tag - 16 or first == 31 then
        wrong = 'damaged: it has ' .. #raw .. ' bytes'
      end
      raw = ''
    end
  end
  if used > 0 then
    if now + step - 1 < newest then
      -- The quota had a longer step when the newest run was made, or the clock stepped back.
      -- [rest]
      -- Reads the rest of the header, which most denials do not need.
      if not widths then
        widths, head, len, room, newest_cost, shift, expires = 64, 0, 0, 0, 0, 0, 0
        if raw ~= '' then
          widths, head, len, room, newest_cost, shift, expires = struct.unpack('<BI2I2I2I7I6I5', raw, 24)
        end
        cost_bytes = widths % 16
        stamp_bytes = (widths - cost_bytes) / 16
      end
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
        -- [ring]
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
        stamp = math.max(stamp, (run_at(len - 1)))
      end
      if stamp < newest then
        if len == 0 then oldest = stamp end
        newest, ahead_bits, moved = stamp, step_bits, true
      end
    end
    if oldest + window <= settled then
      if newest + window <= settled then
        used = 0
      else
        -- [rest]
        -- Reads the rest of the header, which most denials do not need.
        if not widths then
          widths, head, len, room, newest_cost, shift, expires = 64, 0, 0, 0, 0, 0, 0
          if raw ~= '' then
            widths, head, len, room, newest_cost, shift, expires = struct.unpack('<BI2I2I2I7I6I5', raw, 24)
          end
          cost_bytes = widths % 16
          stamp_bytes = (widths - cost_bytes) / 16
        end
        -- [ring]
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
  local function report(needed)
    local numbers = {
      -- [numbers]
      settled, used, newest, oldest
    }
    -- [needed]
    -- Reports the oldest runs too, as many as hold `needed` cost: when they expire, a denied cost fits.
    if needed > 1 and used > 0 then
      -- [rest]
      -- Reads the rest of the header, which most denials do not need.
      if not widths then
        widths, head, len, room, newest_cost, shift, expires = 64, 0, 0, 0, 0, 0, 0
        if raw ~= '' then
          widths, head, len, room, newest_cost, shift, expires = struct.unpack('<BI2I2I2I7I6I5', raw, 24)
        end
        cost_bytes = widths % 16
        stamp_bytes = (widths - cost_bytes) / 16
      end
      -- [ring]
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
    return numbers
  end
  local function save()
    -- [save]
    -- [rest]
    -- Reads the rest of the header, which most denials do not need.
    if not widths then
      widths, head, len, room, newest_cost, shift, expires = 64, 0, 0, 0, 0, 0, 0
      if raw ~= '' then
        widths, head, len, room, newest_cost, shift, expires = struct.unpack('<BI2I2I2I7I6I5', raw, 24)
      end
      cost_bytes = widths % 16
      stamp_bytes = (widths - cost_bytes) / 16
    end
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
      -- [ttl]
      -- Two windows, so that most charges in place need not renew it, and four seconds: a charge may
      -- count up to a step longer than a window, and a second longer if the clock was set back.
      local ttl_ms = math.floor(math.max(until_us - now, math.min(until_us - now + window, 2 * window)) / 1000) + 4000
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
      -- A TTL that is too short loses usage. It is too long after the window was shortened or the clock
      -- was set back.
      if until_us > expires * 1000000 or expires * 1000000 > now + 2 * window + 5000000 then
        -- [ttl]
        -- Two windows, so that most charges in place need not renew it, and four seconds: a charge may
        -- count up to a step longer than a window, and a second longer if the clock was set back.
        local ttl_ms = math.floor(math.max(until_us - now, math.min(until_us - now + window, 2 * window)) / 1000) + 4000
        call('PEXPIRE', key, ttl_ms)
        expires = math.floor((now + ttl_ms * 1000) / 1000000)
      end
      call('SETRANGE', key, '0', struct.pack('<BBI7I7I7BI2I2I2I7I6I5', 20, ahead_bits, used, newest, oldest,
        stamp_bytes * 16 + cost_bytes, head, len, room, newest_cost, shift, expires) .. between)
    end
  end
  local function charge(cost)
    -- [charge]
    -- [rest]
    -- Reads the rest of the header, which most denials do not need.
    if not widths then
      widths, head, len, room, newest_cost, shift, expires = 64, 0, 0, 0, 0, 0, 0
      if raw ~= '' then
        widths, head, len, room, newest_cost, shift, expires = struct.unpack('<BI2I2I2I7I6I5', raw, 24)
      end
      cost_bytes = widths % 16
      stamp_bytes = (widths - cost_bytes) / 16
    end
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
    return save()
  end
  local function refund(cost)
    -- [refund]
    -- The oldest charges are refunded first: the rest counts at least as long as the latest charges.
    local refunded = math.min(cost, used)
    if refunded == used then
      used = 0
    else
      -- [rest]
      -- Reads the rest of the header, which most denials do not need.
      if not widths then
        widths, head, len, room, newest_cost, shift, expires = 64, 0, 0, 0, 0, 0, 0
        if raw ~= '' then
          widths, head, len, room, newest_cost, shift, expires = struct.unpack('<BI2I2I2I7I6I5', raw, 24)
        end
        cost_bytes = widths % 16
        stamp_bytes = (widths - cost_bytes) / 16
      end
      -- [ring]
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
      local left = refunded
      while left > 0 do
        if len == 0 then
          newest_cost, used, left = newest_cost - left, used - left, 0
        else
          local _, oldest_cost = run_at(0)
          if oldest_cost > left then
            call('SETRANGE', key, 48 + head * run_bytes + stamp_bytes,
              struct.pack('<I' .. cost_bytes, oldest_cost - left))
            -- What was read of the ring is out of date: a rewrite reads it again.
            raw = raw:sub(1, 48)
            used, left = used - left, 0
          else
            left, used, head, len = left - oldest_cost, used - oldest_cost, (head + 1) % room, len - 1
            oldest = len > 0 and run_at(0) or newest
          end
        end
      end
    end
    if refunded > 0 and used == 0 then
      call('DEL', key)
    elseif refunded > 0 then
      local failed = save()
      if failed then return failed end
    end
    return refunded
  end
  -- [most]
  -- The maximum usage of a key: `Quota::max_used`.
  local most = 9007199254740991
  return used, capacity, most, wrong, moved, report, charge, save, refund
end

-- The usage of a key, and the functions that report and change it.
opens.W = function(key, now, packed)
  -- [quota]
  -- `head` is the first three bytes of a compact value of this window; 0 if it has no compact form.
  local window, capacity, head = struct.unpack('<I6I7I3', packed)
  -- [settle]
  -- `stop` is the end of the window that `current` counts in.
  local tag, stop, previous, current, settled, moved, wrong = 18, 0, 0, 0, now, false, nil
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
        -- [counted]
        -- The window of a compact value that does not begin with `head`: a number of seconds, minutes,
        -- hours or days.
        local code = math.floor(found / 256)
        counted = math.floor(code / 4) * ({ [0] = 1000000, 60000000, 3600000000, 86400000000 })[code % 4]
        found = found % 256 == tag + 16 and counted > 0
      end
    elseif #raw == 28 then
      found, counted, stop, previous, current = struct.unpack('<BI6I7I7I7', raw)
      found = found == tag
    end
    if not found then
      counted, stop, previous, current = window, 0, 0, 0
      -- [foreign]
      -- `raw` is not a valid value of this algorithm, whose tag is `tag`. A value of another algorithm is
      -- ignored: the key starts afresh. The first byte 31 marks a log that was found truncated.
      local first = raw:byte(1)
      if not first or not (first >= 17 and first <= 20 or first == 33 or first == 34 or first == 31) then
        wrong = 'not of layout 1 or 2: its first byte is ' .. tostring(first)
      elseif first % 16 == tag - 16 or first == 31 then
        wrong = 'damaged: it has ' .. #raw .. ' bytes'
      end
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
      -- [mul_div]
      -- floor(a * b / c) and the remainder, for c below 2^45. A quotient above 2^53 is approximate.
      local function mul_div(a, b, c)
        local product = a * b
        if product < 9007199254740992 then
          local quotient = math.floor(product / c)
          return quotient, product - quotient * c
        end
        local whole = math.floor(b / c)
        local part = b - whole * c
        local quotient, rest, left = 0, 0, a
        -- Seven bits of `a` at a time, so that rest * 128 + digit * part stays below 2^53.
        local digit_value = 562949953421312
        while digit_value >= 1 do
          local digit = math.floor(left / digit_value)
          left = left - digit * digit_value
          rest = rest * 128 + digit * part
          local share = math.floor(rest / c)
          rest = rest - share * c
          quotient = quotient * 128 + share
          digit_value = digit_value / 128
        end
        return a * whole + quotient, rest
      end
      local rest
      weighted, rest = mul_div(previous, stop - settled, counted)
      if rest > 0 then weighted = weighted + 1 end
    end
    used = math.min(current + weighted, 9007199254740991)
  end
  if counted ~= window then
    -- What counts now counts as charged in the window of the new length. A denial writes that as well,
    -- or each one would do it anew, in a later window.
    current, previous, stop, moved = used, 0, settled - settled % window + window, true
  end
  local function report(needed)
    local numbers = {
      -- [numbers]
      settled, stop, previous, current
    }
    return numbers
  end
  local function save()
    -- [save]
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
  end
  local function charge(cost)
    -- [charge]
    current, used = current + cost, used + cost
    return save()
  end
  local function refund(cost)
    -- [refund]
    local refunded = math.min(cost, used)
    local from_current = math.min(refunded, current)
    current, used = current - from_current, used - refunded
    if refunded > from_current then
      -- The older counter's largest value whose weighted part is `used`, rounded down.
      -- [mul_div]
      -- floor(a * b / c) and the remainder, for c below 2^45. A quotient above 2^53 is approximate.
      local function mul_div(a, b, c)
        local product = a * b
        if product < 9007199254740992 then
          local quotient = math.floor(product / c)
          return quotient, product - quotient * c
        end
        local whole = math.floor(b / c)
        local part = b - whole * c
        local quotient, rest, left = 0, 0, a
        -- Seven bits of `a` at a time, so that rest * 128 + digit * part stays below 2^53.
        local digit_value = 562949953421312
        while digit_value >= 1 do
          local digit = math.floor(left / digit_value)
          left = left - digit * digit_value
          rest = rest * 128 + digit * part
          local share = math.floor(rest / c)
          rest = rest - share * c
          quotient = quotient * 128 + share
          digit_value = digit_value / 128
        end
        return a * whole + quotient, rest
      end
      local kept = mul_div(used, window, stop - settled)
      previous = math.min(previous, kept)
    end
    if refunded > 0 and used == 0 then
      call('DEL', key)
    elseif refunded > 0 then
      local failed = save()
      if failed then return failed end
    end
    return refunded
  end
  -- [most]
  -- The maximum usage of a key: `Quota::max_used`.
  local most = 9007199254740991
  return used, capacity, most, wrong, moved, report, charge, save, refund
end

-- The usage of a key, and the functions that report and change it.
opens.F = function(key, now, packed)
  -- [quota]
  -- `head` is the first three bytes of a compact value of this window; 0 if it has no compact form.
  local window, capacity, head = struct.unpack('<I6I7I3', packed)
  -- [settle]
  -- `stop` is the end of the window that `used` counts in.
  local tag, stop, used, settled, moved, wrong = 17, 0, 0, now, false, nil
  -- The end that the stored value's TTL was set for.
  local expires = 0
  local raw = call('GET', key)
  local counted = window
  if raw then
    local found
    if #raw == 12 then
      found, stop, used = struct.unpack('<I3I4I5', raw)
      stop = stop * 1000000
      if found ~= head or head == 0 then
        -- [counted]
        -- The window of a compact value that does not begin with `head`: a number of seconds, minutes,
        -- hours or days.
        local code = math.floor(found / 256)
        counted = math.floor(code / 4) * ({ [0] = 1000000, 60000000, 3600000000, 86400000000 })[code % 4]
        found = found % 256 == tag + 16 and counted > 0
      end
    elseif #raw == 21 then
      found, counted, stop, used = struct.unpack('<BI6I7I7', raw)
      found = found == tag
    end
    if not found then
      counted, stop, used = window, 0, 0
      -- [foreign]
      -- `raw` is not a valid value of this algorithm, whose tag is `tag`. A value of another algorithm is
      -- ignored: the key starts afresh. The first byte 31 marks a log that was found truncated.
      local first = raw:byte(1)
      if not first or not (first >= 17 and first <= 20 or first == 33 or first == 34 or first == 31) then
        wrong = 'not of layout 1 or 2: its first byte is ' .. tostring(first)
      elseif first % 16 == tag - 16 or first == 31 then
        wrong = 'damaged: it has ' .. #raw .. ' bytes'
      end
    end
    expires = stop
  end
  local current_stop = now - now % counted + counted
  if current_stop ~= stop then
    if now >= stop then
      stop, used = current_stop, 0
    elseif stop - counted == current_stop and current_stop - now <= (counted < 1000000 and counted or 1000000) then
      settled = current_stop
    else
      -- A large step back of the clock: the counter stays until its end, at most one window from now.
      stop, moved = math.min(stop, now + counted), true
    end
  end
  if counted ~= window then
    -- A denial writes this as well, or each one would move usage anew, to a later window.
    stop, moved = settled - settled % window + window, true
  end
  local function report(needed)
    local numbers = {
      -- [numbers]
      settled, stop, used
    }
    return numbers
  end
  local function save()
    -- [save]
    local value
    if head > 0 and used < 1099511627776 and stop % 1000000 == 0 and stop < 4294967296000000 then
      value = struct.pack('<I3I4I5', head, stop / 1000000, used)
    else
      value = struct.pack('<BI6I7I7', 17, window, stop, used)
    end
    if expires == stop and #value == #raw then
      -- In place, which keeps the TTL: half the cost of `SET`.
      call('SETRANGE', key, '0', value)
    else
      call('SET', key, value, 'PX', math.ceil((stop - now) / 1000) + 5000)
    end
  end
  local function charge(cost)
    -- [charge]
    used = used + cost
    return save()
  end
  local function refund(cost)
    -- [refund]
    local refunded = math.min(cost, used)
    used = used - refunded
    if refunded > 0 and used == 0 then
      call('DEL', key)
    elseif refunded > 0 then
      local failed = save()
      if failed then return failed end
    end
    return refunded
  end
  -- [most]
  -- The maximum usage of a key: `Quota::max_used`.
  local most = 9007199254740991
  return used, capacity, most, wrong, moved, report, charge, save, refund
end

-- The usage of a key, and the functions that report and change it.
opens.B = function(key, now, packed)
  -- [quota]
  local window, capacity, limit = struct.unpack('<I6I7I7', packed)
  -- [settle]
  -- The content at the time `at`: `level` is whole cost, `fraction` the rest in cost times
  -- microseconds, less than the window.
  local tag, at, level, fraction, settled, moved, wrong = 19, now, 0, 0, now, false, nil
  local rate = limit > 0 and limit or 1
  local raw = call('GET', key)
  if raw then
    local found, counted
    if #raw == 27 then found, counted, at, level, fraction = struct.unpack('<BI6I7I7I6', raw) end
    if found ~= tag then
      counted, at, level, fraction = window, now, 0, 0
      -- [foreign]
      -- `raw` is not a valid value of this algorithm, whose tag is `tag`. A value of another algorithm is
      -- ignored: the key starts afresh. The first byte 31 marks a log that was found truncated.
      local first = raw:byte(1)
      if not first or not (first >= 17 and first <= 20 or first == 33 or first == 34 or first == 31) then
        wrong = 'not of layout 1 or 2: its first byte is ' .. tostring(first)
      elseif first % 16 == tag - 16 or first == 31 then
        wrong = 'damaged: it has ' .. #raw .. ' bytes'
      end
    end
    -- [bound]
    -- Drops content above the maximum, which a lowered limit may leave.
    do
      -- [most]
      -- The maximum usage of a key: one window's drain above the capacity.
      local most = math.min(capacity + rate, 9007199254740991)
      if level > most or level == most and fraction > 0 then
        level, fraction = most, 0
      end
    end
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
        -- [mul_div]
        -- floor(a * b / c) and the remainder, for c below 2^45. A quotient above 2^53 is approximate.
        local function mul_div(a, b, c)
          local product = a * b
          if product < 9007199254740992 then
            local quotient = math.floor(product / c)
            return quotient, product - quotient * c
          end
          local whole = math.floor(b / c)
          local part = b - whole * c
          local quotient, rest, left = 0, 0, a
          -- Seven bits of `a` at a time, so that rest * 128 + digit * part stays below 2^53.
          local digit_value = 562949953421312
          while digit_value >= 1 do
            local digit = math.floor(left / digit_value)
            left = left - digit * digit_value
            rest = rest * 128 + digit * part
            local share = math.floor(rest / c)
            rest = rest - share * c
            quotient = quotient * 128 + share
            digit_value = digit_value / 128
          end
          return a * whole + quotient, rest
        end
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
    if counted ~= window then
      -- A denial writes this as well, or what drains would go on to count by the former window.
      moved = true
      -- A fraction rounds up to a whole.
      if fraction > 0 then level, fraction = level + 1, 0 end
    end
  end
  local used = fraction > 0 and level + 1 or level
  local function report(needed)
    local numbers = {
      -- [numbers]
      settled, level, fraction
    }
    return numbers
  end
  local function save()
    -- [save]
    -- The TTL is the time until it is empty and up to five seconds more. `at` may be a second ahead.
    local ttl_us = used * window / rate + at - now
    -- A large burst may take longer to drain than Redis takes: 2^61, some 73,000 years.
    if ttl_us > 2305843009213693952 then ttl_us = 2305843009213693952 end
    call('SET', key, struct.pack('<BI6I7I7I6', 19, window, at, level, fraction),
      'PX', math.floor(ttl_us / 1000) + 4000)
  end
  local function charge(cost)
    -- [charge]
    level, used = level + cost, used + cost
    return save()
  end
  local function refund(cost)
    -- [refund]
    local refunded = math.min(cost, used)
    if refunded <= level then
      level = level - refunded
    else
      level, fraction = 0, 0
    end
    used = fraction > 0 and level + 1 or level
    if refunded > 0 and used == 0 then
      call('DEL', key)
    elseif refunded > 0 then
      local failed = save()
      if failed then return failed end
    end
    return refunded
  end
  -- [most]
  -- The maximum usage of a key: one window's drain above the capacity.
  local most = math.min(capacity + rate, 9007199254740991)
  return used, capacity, most, wrong, moved, report, charge, save, refund
end

-- Nothing is used: what counts is what is held.
opens.P = function(key, now, packed)
  local _, capacity = struct.unpack('<I6I7', packed)
  local function report() return {} end
  local function nothing() end
  return 0, capacity, 9007199254740991, nil, false, report, nothing, nothing, function() return 0 end
end

-- The most holds of a key, and the bytes of a table's header and of each hold.
local MOST, HEADER, ENTRY = 1024, 32, 30
-- Bits of a hold's last byte: dropped at its end instead of charged; ended, and kept to recognize
-- repeated calls.
local FORGET, ENDED = 1, 2

local function pack_hold(id, stop, held, settled, kind)
  return id .. struct.pack('<I7I7I7B', stop, held, settled, kind)
end

-- The holds themselves, with what was changed since they were read. Most decisions do not need
-- them, and a long string costs much, as the server hashes each one whole: it is made when needed.
local function list(holds)
  local listed, patches = holds.list, holds.patches
  if not listed then listed = call('GETRANGE', holds.key, '32', HEADER + holds.count * ENTRY - 1) end
  for patch = holds.applied + 1, #patches do
    local from = patches[patch][1] - HEADER
    listed = listed:sub(1, from) .. patches[patch][2] .. listed:sub(from + ENTRY + 1)
  end
  if #listed > holds.count * ENTRY then listed = listed:sub(1, holds.count * ENTRY) end
  if #listed < holds.count * ENTRY then holds.wrong = 'damaged: its holds are cut off' end
  holds.list, holds.applied = listed, #patches
  return listed
end

-- The hold at this place: id, end, what is held, what was settled, kind.
local function hold_at(holds, place)
  local from, listed = (place - 1) * ENTRY, list(holds)
  return listed:sub(from + 1, from + 8), struct.unpack('<I7I7I7B', listed, from + 9)
end

-- The place of the hold with this id.
local function find(holds, id)
  local from, listed = 1, list(holds)
  while true do
    local at = listed:find(id, from, true)
    if not at then return nil end
    if at % ENTRY == 1 then return (at - 1) / ENTRY + 1 end
    from = at + 1
  end
end

local function bound(holds, stop)
  local is_first = holds.count == 0
  holds.earliest = is_first and stop or math.min(holds.earliest, stop)
  holds.latest = is_first and stop or math.max(holds.latest, stop)
end

-- Writes a hold at a place, which may be the next one.
local function put(holds, place, entry)
  local from = (place - 1) * ENTRY
  holds.patches[#holds.patches + 1] = { HEADER + from, entry }
  holds.is_changed = true
end

local function add(holds, id, stop, held, settled, kind)
  bound(holds, stop)
  holds.count = holds.count + 1
  put(holds, holds.count, pack_hold(id, stop, held, settled, kind))
  holds.sum = holds.sum + held
end

-- Removes a hold: the last one takes its place.
local function remove(holds, place)
  local last = holds.count
  if place < last then put(holds, place, list(holds):sub((last - 1) * ENTRY + 1, last * ENTRY)) end
  holds.count, holds.is_changed = last - 1, true
end

-- Replaces the whole table.
local function rebuild(holds, entries)
  holds.sum, holds.earliest, holds.latest, holds.count = 0, 0, 0, 0
  holds.list, holds.patches, holds.applied = table.concat(entries), {}, 0
  holds.is_changed, holds.is_rebuilt = true, true
  for place = 1, #entries do
    local stop, held = struct.unpack('<I7I7', entries[place], 9)
    bound(holds, stop)
    holds.count, holds.sum = place, holds.sum + held
  end
end

-- Opens a key with its holds, as of `now`: those whose time is over are charged as of their ends.
-- Returns what `opens` returns, of which usage includes what is held, and the holds.
local function open_with_holds(letter, key, usage, now, packed)
  local window = struct.unpack('<I6', packed)
  local small = window < 1000000 and window or 1000000
  local linger = struct.unpack('<I7', packed, #packed - 6)
  local raw = call('GETRANGE', key, '0', '31')
  local holds = { key = key, usage = usage, sum = 0, earliest = 0, latest = 0, count = 0,
    patches = {}, applied = 0, is_stored = raw:byte(1) == 21, is_changed = false, at = now }
  local function save_holds()
    if holds.count == 0 then
      if holds.is_stored and call('EXISTS', usage) == 1 then
        call('RENAME', usage, key)
      elseif holds.is_stored then
        call('DEL', key)
      end
      return
    end
    local header = struct.pack('<BI7I7I7I7I2B', 21, holds.sum, holds.earliest, holds.latest, holds.at, holds.count, 0)
    local ttl_ms = math.floor(math.max(holds.latest - now, 0) / 1000) + linger
    if holds.is_stored and not holds.is_rebuilt then
      for _, patch in ipairs(holds.patches) do call('SETRANGE', key, patch[1], patch[2]) end
      call('SETRANGE', key, '0', header)
      call('PEXPIRE', key, ttl_ms)
      return
    end
    if not holds.is_stored then
      -- What an evicted table has left behind does not count.
      call('DEL', usage)
      if letter ~= 'P' and call('EXISTS', key) == 1 then call('RENAME', key, usage) end
    end
    call('SET', key, header .. list(holds), 'PX', ttl_ms)
  end
  local state = key
  if holds.is_stored then
    if #raw < HEADER then holds.wrong = 'damaged: it has ' .. #raw .. ' bytes' else
      local _, seen
      _, holds.sum, holds.earliest, holds.latest, seen, holds.count = struct.unpack('<BI7I7I7I7I2', raw)
      state = usage
      if now < seen then
        local step = seen - now
        if step <= small then
          holds.at = seen
        else
          -- A large step back of the clock: no hold lasts longer than its time from now on.
          list(holds)
          local entries = {}
          for place = 1, holds.wrong and 0 or holds.count do
            local id, stop, held, settled, kind = hold_at(holds, place)
            entries[place] = pack_hold(id, math.max(stop - step, 0), held, settled, kind)
          end
          local earliest, latest = math.max(holds.earliest - step, 0), math.max(holds.latest - step, 0)
          rebuild(holds, entries)
          holds.earliest, holds.latest = earliest, latest
        end
      end
    end
  else
    holds.list = ''
  end
  if not holds.wrong and holds.count > 0 and holds.at >= holds.earliest then
    list(holds)
    local due, left = {}, {}
    for place = 1, holds.wrong and 0 or holds.count do
      local _, stop, held, _, kind = hold_at(holds, place)
      if stop <= holds.at then
        due[#due + 1] = { stop, kind == 0 and held or 0 }
      else
        left[#left + 1] = holds.list:sub((place - 1) * ENTRY + 1, place * ENTRY)
      end
    end
    table.sort(due, function(one, other) return one[1] < other[1] end)
    for _, hold in ipairs(due) do
      if hold[2] > 0 then
        local used, _, most, wrong, _, _, charge = opens[letter](state, hold[1], packed)
        holds.wrong = holds.wrong or wrong
        local cost = math.min(hold[2], most - used)
        if cost > 0 and not wrong then charge(cost) end
      end
    end
    if not holds.wrong then
      local is_changed, is_rebuilt = holds.is_changed, holds.is_rebuilt
      rebuild(holds, left)
      if #due > 0 then
        save_holds()
        is_changed, is_rebuilt = false, false
        -- With the last hold, usage is under its own name again.
        if holds.count == 0 then holds.is_stored, state = false, key end
      end
      -- The hold that ended first may have been settled: then a denial writes when the next one ends,
      -- or each would search for that again.
      holds.is_changed, holds.is_rebuilt = is_changed or #due == 0, is_rebuilt
    end
  end
  local used, capacity, most, wrong, moved, report, charge, save, refund = opens[letter](state, now, packed)
  local own = { used = used, report = report, charge = charge, save = save, refund = refund, most = most }
  -- The numbers of the algorithm, the header of the holds, and the holds if `needed` is not 0.
  local function report_with_holds(needed)
    local listed = ''
    if needed > 0 then listed = list(holds) end
    return { own.report(math.min(needed, own.used)),
      struct.pack('<BI7I7I7I7I2B', 21, holds.sum, holds.earliest, holds.latest, holds.at, holds.count, 0), listed }
  end
  return used + holds.sum, capacity, most + holds.sum, holds.wrong or wrong, moved, report_with_holds,
    own, holds, save_holds
end
-- [mul_div]
-- floor(a * b / c) and the remainder, for c below 2^45. A quotient above 2^53 is approximate.
local function mul_div(a, b, c)
  local product = a * b
  if product < 9007199254740992 then
    local quotient = math.floor(product / c)
    return quotient, product - quotient * c
  end
  local whole = math.floor(b / c)
  local part = b - whole * c
  local quotient, rest, left = 0, 0, a
  -- Seven bits of `a` at a time, so that rest * 128 + digit * part stays below 2^53.
  local digit_value = 562949953421312
  while digit_value >= 1 do
    local digit = math.floor(left / digit_value)
    left = left - digit * digit_value
    rest = rest * 128 + digit * part
    local share = math.floor(rest / c)
    rest = rest - share * c
    quotient = quotient * 128 + share
    digit_value = digit_value / 128
  end
  return a * whole + quotient, rest
end
-- Changes.
local SETTLE, SETTLE_PART, CANCEL, REFUND, EXTEND, EXTEND_TIME = 1, 2, 3, 4, 5, 6
-- Statuses.
local CHANGED, ALREADY_SETTLED, EXPIRED, DENIED = 1, 2, 3, 4
-- How long the end of a hold is kept to recognize repeated calls: `hold.rs`.
local DEFAULT_TTL, LONGEST_TTL = 60000000, 3600000000

-- What still counts of a cost that was charged at `made`: `counts_still` in `held.rs`.
local function counts_still(letter, packed, cost, made)
  local window, _ = struct.unpack('<I6I7', packed)
  local age = math.max(now - made, 0)
  if letter == 'L' then return age < window and cost or 0 end
  if letter == 'B' then
    local limit = struct.unpack('<I7', packed, 14)
    local drained, rest = mul_div(age, limit, window)
    if rest > 0 then drained = drained + 1 end
    return math.max(cost - drained, 0)
  end
  return letter ~= 'P' and math.floor(made / window) == math.floor(now / window) and cost or 0
end

local count = #KEYS / 2
local changes, all_fit = {}, true
for c = 1, count do
  local from = 2 + (c - 1) * 3
  local letter, packed, change = argv[from], argv[from + 1], argv[from + 2]
  local used, capacity, _, wrong, _, report, own, holds, save_holds =
    open_with_holds(letter, KEYS[c], KEYS[count + c], now, packed)
  local id = change:sub(1, 8)
  local place = not wrong and find(holds, id)
  wrong = wrong or holds.wrong
  if wrong then return redis.error_reply('SLIDEGATE value ' .. c .. ' is ' .. wrong) end
  local kind, total, ttl, amount, stop, forget, made = struct.unpack('<BI7I5I7I7BI7', change, 9)
  local more, excess_cost = 0, 0
  if kind == EXTEND and place then
    local _, _, held, settled, flags = hold_at(holds, place)
    if flags < ENDED then more = math.max(total - held - settled, 0) end
    excess_cost = more - capacity + used
    if more > 0 and excess_cost > 0 then all_fit = false else more = 0 end
  end
  if kind == REFUND then total = counts_still(letter, packed, total, made) end
  changes[c] = { own = own, holds = holds, save_holds = save_holds, report = report, id = id, place = place,
    kind = kind, total = total, ttl = ttl, amount = amount, is_over = now >= stop, forget = forget == 1,
    is_permit = letter == 'P', more = more, excess_cost = excess_cost, capacity = capacity, window = struct.unpack('<I6', packed) }
end

local function add_ended(holds, id, settled, stop)
  if holds.count < MOST then add(holds, id, stop, 0, settled, FORGET + ENDED) end
end

-- Carries out a change: its status, the cost to charge, the cost to refund, and of an extension
-- what was held in all before.
local function carry_out(one)
  local holds, id, kind, total = one.holds, one.id, one.kind, one.total
  if kind == REFUND then
    if one.place then return ALREADY_SETTLED, 0, 0 end
    if holds.count >= MOST then return CHANGED, 0, 0 end
    add_ended(holds, id, 0, holds.at + math.min(one.window, LONGEST_TTL))
    return CHANGED, 0, total
  end
  if not one.place then
    local cost = 0
    -- A permit is given back by its time, and charges nothing.
    if kind <= SETTLE_PART and one.is_over and not one.is_permit then
      cost = one.forget and total or math.max(total - one.amount, 0)
    end
    if cost > 0 then
      add_ended(holds, id, one.forget and cost or one.amount + cost, holds.at + DEFAULT_TTL)
    end
    return one.is_over and EXPIRED or ALREADY_SETTLED, cost, 0
  end
  local _, stop, held, settled, flags = hold_at(holds, one.place)
  local has_ended = flags >= ENDED
  if has_ended and kind > SETTLE_PART then return EXPIRED, 0, 0 end
  local cost, next_stop, before = 0, holds.at + one.ttl
  if kind <= SETTLE_PART then
    cost = math.max(total - settled, 0)
    local freed = kind == SETTLE_PART and math.min(cost, held) or held
    held, settled, holds.sum = held - freed, settled + cost, holds.sum - freed
  elseif kind == EXTEND then
    local extended = math.max(total - settled, 0)
    before = held + settled
    holds.sum, held = holds.sum - held + extended, extended
  elseif kind == CANCEL then
    holds.sum = holds.sum - held
  end
  if has_ended then
    put(holds, one.place, pack_hold(id, stop, held, settled, flags))
  elseif kind == SETTLE or kind == CANCEL then
    remove(holds, one.place)
  else
    bound(holds, next_stop)
    put(holds, one.place, pack_hold(id, next_stop, held, settled, flags))
  end
  return has_ended and EXPIRED or CHANGED, cost, 0, before
end

local reply = {}
for c = 1, count do
  local one = changes[c]
  -- Holds that were moved with the clock are written by a denial as well.
  if not all_fit and one.kind >= EXTEND and one.holds.is_changed then one.save_holds() end
  if not all_fit and one.kind == EXTEND and one.more > 0 then
    local listed = one.more <= one.capacity and one.excess_cost or 0
    reply[c] = { DENIED, one.more, one.report(listed) }
  elseif not all_fit and one.kind >= EXTEND then
    reply[c] = { DENIED, 0, one.report(0) }
  else
    local own = one.own
    local status, cost, refunded, before = carry_out(one)
    cost = math.max(math.min(cost, own.most - own.used), 0)
    local failed
    if cost > 0 then failed = own.charge(cost) end
    if refunded > 0 then cost = own.refund(refunded) end
    if failed then return failed end
    if cost > 0 or one.holds.is_changed then one.save_holds() end
    reply[c] = { status, cost, one.report(0), before }
  end
end
return { 0, now, reply }
