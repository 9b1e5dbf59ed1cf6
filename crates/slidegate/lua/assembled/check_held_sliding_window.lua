-- Assembled from the files of `lua/` that are named below. Do not edit: change those and run
-- SLIDEGATE_ASSEMBLE_LUA=1 cargo test -p slidegate --features redis assembled
-- Sent without comments; line NN here is line NN + 1 in an error of the server.

-- check_held.lua
--
-- Checks, peeks at or reserves on one key that may have holds, for one request.
-- `decide_with_holds.lua` does everything else.
--
-- KEYS[1]: the key. KEYS[2]: the key of its usage while it has holds.
-- ARGV[1]: the latest server time at which the call may still charge (integer, us).
-- ARGV[2]: the quota, packed as the piece `quota` unpacks it, and how long its usage lasts after its
--   last hold (7 bytes, ms).
-- ARGV[3]: the cost (integer).
-- ARGV[4]: `c`heck, `p`eek or `h`old.
-- ARGV[5]: the hold, packed: its id (8 bytes), its time (5 bytes, us), whether it is dropped at its
--   end (1 byte).
-- Reply: bytes, 7 for each number: 1 if the request is allowed, now (us), and the `numbers` of the
--   algorithm before anything was charged; then the header of the table of holds, if there is one,
--   as it was stored. If a denial depends on when holds and charges end, the reply is a list: these
--   bytes, the holds, then timestamp and cost of the oldest runs of a log. {-1, now} if the call is
--   too late; {-2, now} if it is one for `decide_with_holds.lua`.
-- Layout: docs/redis-layout.md. Rust twin: `HeldKey` in `src/algorithm/held.rs`.

-- held_key.lua
--
-- A key that may have holds, in the scripts for one key. What is rare is left to the scripts for any
-- number of keys: these then change nothing and reply {-2, now}. Layout: docs/redis-layout.md.

-- sliding_window.lua
--
-- Sliding window: two counters, the older one weighted by its overlap with the window, rounded up.
-- Twin of `src/algorithm/sliding_window.rs`: change both or neither.

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
local key, packed = KEYS[1], argv[2]
-- [quota]
-- `head` is the first three bytes of a compact value of this window; 0 if it has no compact form.
local window, capacity, head = struct.unpack('<I6I7I3', packed)
-- [table]
-- The table of the key's holds, if it has some. `key` is the key of its usage from here on.
local name, held, earliest, latest, holds = key, 0, 0, 0, 0
local stored = call('GETRANGE', name, '0', '31')
local has_table = stored:byte(1) == 21
if has_table then
  if #stored < 32 then return { -2, now } end
  local seen
  held, earliest, latest, seen, holds = struct.unpack('<I7I7I7I7I2', stored, 2)
  -- Holds may have ended, or the clock was set back.
  if now < seen or now >= earliest then return { -2, now } end
  key = KEYS[2]
end
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
if wrong then return redis.error_reply('SLIDEGATE value is ' .. wrong) end
local asks, verb = argv[3] + 0, argv[4]
-- In this order every sum is below 2^53, unless the cost can never fit.
local over = asks - capacity + used + held
local passes = asks == 0 or over <= 0 and (verb ~= 'h' or holds < 1024)
local numbers = struct.pack(
  -- [widths]
  '<I7I7I7I7I7I7',
  passes and 1 or 0, now,
  -- [numbers]
  settled, stop, previous, current
)
if has_table then numbers = numbers .. stored end
if asks > 0 and over > 0 and asks <= capacity then
  local needed = math.min(over, used)
  -- A long string costs much, as the server hashes each one whole: only such a denial reads it.
  numbers = { numbers, has_table and call('GETRANGE', name, '32', 31 + holds * 30) or '' }
end
local cost = passes and verb == 'c' and asks or 0
if cost > 0 then
  -- [charge]
  current, used = current + cost, used + cost
end
if cost > 0 or moved and used > 0 and verb ~= 'p' then
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
  if has_table then
    -- [renew]
    -- A table is kept for six seconds after its last hold at least, whichever window its TTL was set for.
    -- Renewing that takes an eighth of a check, so only usage that counts longer than this does.
    -- [counts_until]
    local counts_until = stop + window
    if counts_until > latest + 4000000 then
      -- [keep]
      -- Until the last hold has ended and nothing can count any more.
      local kept_ms = math.floor((latest - now) / 1000) + struct.unpack('<I7', packed, #packed - 6)
      call('PEXPIRE', name, kept_ms)
    end
  end
end
if passes and verb == 'h' and asks > 0 then
  local ttl, is_dropped = struct.unpack('<I5B', argv[5], 9)
  local ends, place = now + ttl, holds
  if place == 0 or ends < earliest then earliest = ends end
  if ends > latest then latest = ends end
  held, holds = held + asks, holds + 1
  local entry = struct.pack('<c8I7I7I7B', argv[5], ends, asks, 0, is_dropped)
  -- [header]
  local header = struct.pack('<BI7I7I7I7I2B', 21, held, earliest, latest, now, holds, 0)
  -- [keep]
  -- Until the last hold has ended and nothing can count any more.
  local kept_ms = math.floor((latest - now) / 1000) + struct.unpack('<I7', packed, #packed - 6)
  if has_table then
    call('SETRANGE', name, 32 + place * 30, entry)
    call('SETRANGE', name, '0', header)
    call('PEXPIRE', name, kept_ms)
  else
    -- What an evicted table has left behind does not count.
    if stored ~= '' then call('RENAME', name, KEYS[2]) else call('DEL', KEYS[2]) end
    call('SET', name, header .. entry, 'PX', kept_ms)
  end
end
return numbers
