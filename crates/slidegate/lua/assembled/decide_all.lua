-- Assembled from the files of `lua/` that are named below. Do not edit: change those and run
-- SLIDEGATE_ASSEMBLE_LUA=1 cargo test -p slidegate --features redis assembled
-- Sent without comments; line NN here is line NN + 1 in an error of the server.

-- decide.lua
--
-- Decides requests in order, each on all of its keys or on none, at one time.
--
-- KEYS: the key of each part of the requests; with `once` last the key that stores the first reply.
-- ARGV: the latest server time at which the call may still charge (integer, us); `once` or `apply`;
--   the number of requests, and the cost of each (integers); then for each part
--   - the letter of its algorithm, or the number of an earlier part with the same key,
--   - its mode, see below,
--   - its quota, packed as the piece `quota` of the algorithm unpacks it (bytes),
--   - its own cost (integer); empty if it is the request's;
--   with `once` last how long the reply is stored (integer, ms).
-- A mode has five letters: the verb (`c`heck, `p`eek, `r`efund, pe`n`alize); `e`nforced or
--   `s`hadow; how an excess is handled (`-` deny, `+` charge, `!` count); the role (`d`eciding,
--   `t`ogether, `a` if allowed, `i`ndependent, `k` refusals); `o` if it is denied while over its
--   limit, otherwise `-`. `t`, `a` and `i` are followed by the number of the request, `k` by that
--   of its base part.
-- Reply: {requests that are not denied, now, {the algorithm's `numbers`} of each key before
--   anything was charged, {its `numbers` afterwards, the cost refunded} of each refund that was
--   carried out}; {-1, now} if the call is too late.
-- Layout: docs/redis-layout.md. Rust twin: `all_or_none` in `src/all_or_nothing.rs`: change both or neither.

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
local requests, parts = argv[3] + 0, #KEYS
-- With `once`, the last key stores the first reply to the same idempotency key.
local once
if argv[2] == 'once' then
  once, parts = KEYS[parts], parts - 1
  local first = call('GET', once)
  if first then return cmsgpack.unpack(first) end
end
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
-- Letters of the modes.
local CHECK, PEEK, REFUND, PENALIZE = 99, 112, 114, 110
local ENFORCED, CHARGE, COUNT, OVER = 101, 43, 33, 111
local DECIDING, TOGETHER, IF_ALLOWED, INDEPENDENT, REFUSALS = 100, 116, 97, 105, 107
-- By part. `at` is the first part with the same key.
local verb, enforced, excess, role, over, link, own, at = {}, {}, {}, {}, {}, {}, {}, {}
-- By key, at the index of its first part.
local used, capacity, most, moved, adds, needed, writes = {}, {}, {}, {}, {}, {}, {}
local report, charge, save, refund = {}, {}, {}, {}
local is_plain = true
for p = 1, parts do
  local from = 3 + requests + (p - 1) * 4
  local letter, mode = argv[from + 1], argv[from + 2]
  verb[p], enforced[p], excess[p], role[p], over[p] = mode:byte(1, 5)
  enforced[p], over[p] = enforced[p] == ENFORCED, over[p] == OVER
  if role[p] ~= DECIDING or over[p] then
    is_plain = false
    link[p] = tonumber(mode:sub(6))
  end
  own[p] = tonumber(argv[from + 4])
  if opens[letter] then
    local wrong
    at[p], adds[p], needed[p] = p, 0, 0
    used[p], capacity[p], most[p], wrong, moved[p], report[p], charge[p], save[p], refund[p] =
      opens[letter](KEYS[p], now, argv[from + 3])
    if wrong then return redis.error_reply('SLIDEGATE value ' .. p .. ' is ' .. wrong) end
  else
    at[p] = letter + 0
  end
end

local reply = { 0, now }
local is_denied, by_peek, denied
for request = 4, 3 + requests do
  local cost = argv[request] + 0
  is_denied, by_peek, denied = false, false, {}
  local added
  if not is_plain then
    -- Usage that counts for a part besides that of its own key.
    added = {}
    for p = 1, parts do
      if role[p] == REFUSALS and verb[p] == PEEK then
        added[link[p]] = (added[link[p]] or 0) + used[at[p]] + adds[at[p]]
      end
    end
  end
  for p = 1, parts do
    if verb[p] == CHECK or verb[p] == PEEK then
      local k, asks = at[p], own[p] or cost
      if excess[p] == CHARGE and asks > 1 then asks = 1 end
      -- In this order every sum is below 2^53, unless the cost can never fit.
      local excess_cost = asks - capacity[k] + used[k] + adds[k]
      if asks > 0 and excess_cost > 0 then
        denied[p] = true
        if excess_cost > needed[k] and asks <= capacity[k] then needed[k] = excess_cost end
      elseif over[p] then
        local least = excess[p] == CHARGE and 1 or 0
        denied[p] = least - capacity[k] + used[k] + adds[k] + (added[p] or 0) > 0
      end
      if denied[p] and enforced[p] and role[p] == DECIDING then
        is_denied, by_peek = true, by_peek or verb[p] == PEEK
      end
    end
  end
  -- By number of a request: whether an enforced policy denies it.
  local refused = {}
  if not is_plain then
    local has_together, all_together, has_peek = false, true, false
    for p = 1, parts do
      if denied[p] and enforced[p] and role[p] ~= DECIDING and role[p] ~= REFUSALS then
        refused[link[p]] = true
      end
    end
    for p = 1, parts do
      if role[p] == TOGETHER then
        has_together, all_together = true, all_together and refused[link[p]]
        has_peek = has_peek or verb[p] == PEEK
      end
    end
    if has_together and all_together then is_denied, by_peek = true, by_peek or has_peek end
  end
  if not is_denied then reply[1] = reply[1] + 1 end
  for p = 1, parts do
    if verb[p] == CHECK then
      local k, takes = at[p], own[p] or cost
      local passes = not is_denied
      if role[p] == INDEPENDENT then
        passes = not refused[link[p]]
      elseif role[p] ~= DECIDING then
        passes = passes and not refused[link[p]]
      end
      if excess[p] == COUNT or passes and excess[p] == CHARGE and not denied[p] then
        adds[k] = math.max(adds[k], math.min(adds[k] + takes, most[k] - used[k]))
        writes[k] = writes[k] or excess[p] == COUNT
        -- The wait includes a denied cost that was counted.
        local excess_cost = takes - capacity[k] + used[k] + adds[k]
        if excess[p] == COUNT and excess_cost > needed[k] and takes <= capacity[k] then
          needed[k] = excess_cost
        end
      elseif passes and not denied[p] then
        adds[k] = adds[k] + takes
      else
        denied[p] = true
      end
      writes[k] = writes[k] or moved[k]
    end
  end
  for p = 1, parts do
    if verb[p] == PENALIZE then
      local is_done = role[p] ~= IF_ALLOWED or not is_denied
      if role[p] == REFUSALS then
        local base = link[p]
        is_done = not by_peek and excess[base] ~= COUNT and (verb[base] ~= CHECK or denied[base])
      end
      if is_done then
        local k, takes = at[p], own[p] or cost
        adds[k], writes[k] = math.max(adds[k], math.min(adds[k] + takes, most[k] - used[k])), true
      end
    end
  end
end

local charged = false
for p = 1, parts do
  if at[p] == p then
    reply[#reply + 1] = report[p](math.min(needed[p], used[p]))
    if adds[p] > 0 then
      charged = true
      local failed = charge[p](adds[p])
      if failed then return failed end
    elseif writes[p] and used[p] > 0 then
      -- A penalty on a full key is written too, so that all stores have settled to the same time.
      save[p]()
    end
  end
end
-- A call with refunds is one request.
for p = 1, parts do
  if verb[p] == REFUND and (role[p] ~= IF_ALLOWED or not is_denied) then
    local k = at[p]
    local report_key, refund_key = report[k], refund[k]
    local from = 3 + requests + (p - 1) * 4
    if adds[k] > 0 or writes[k] then
      -- The key was written: read it again.
      local _
      _, _, _, _, _, report_key, _, _, refund_key =
        opens[argv[3 + requests + (k - 1) * 4 + 1]](KEYS[k], now, argv[from + 3])
    end
    local refunded = refund_key(own[p] or argv[4] + 0)
    writes[k] = true
    reply[#reply + 1] = report_key(0)
    reply[#reply][#reply[#reply] + 1] = refunded
  end
end
if once and charged and reply[1] > 0 then
  call('SET', once, cmsgpack.pack(reply), 'PX', argv[#argv])
end
return reply
