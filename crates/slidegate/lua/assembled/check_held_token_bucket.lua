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
local key, packed = KEYS[1], argv[2]
-- [quota]
local window, capacity, limit = struct.unpack('<I6I7I7', packed)
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
if wrong then return redis.error_reply('SLIDEGATE value is ' .. wrong) end
local asks, verb = argv[3] + 0, argv[4]
-- In this order every sum is below 2^53, unless the cost can never fit.
local over = asks - capacity + used + held
local passes = asks == 0 or over <= 0 and (verb ~= 'h' or holds < 1024)
local numbers = struct.pack(
  -- [widths]
  '<I7I7I7I7I7',
  passes and 1 or 0, now,
  -- [numbers]
  settled, level, fraction
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
  level, used = level + cost, used + cost
end
if cost > 0 or moved and used > 0 and verb ~= 'p' then
  -- [save]
  -- The TTL is the time until it is empty and up to five seconds more. `at` may be a second ahead.
  local ttl_us = used * window / rate + at - now
  -- A large burst may take longer to drain than Redis takes: 2^61, some 73,000 years.
  if ttl_us > 2305843009213693952 then ttl_us = 2305843009213693952 end
  call('SET', key, struct.pack('<BI6I7I7I6', 19, window, at, level, fraction),
    'PX', math.floor(ttl_us / 1000) + 4000)
  if has_table then
    -- [renew]
    -- A table is kept for six seconds after its last hold at least, whichever window its TTL was set for.
    -- Renewing that takes an eighth of a check, so only usage that counts longer than this does.
    -- [counts_until]
    local counts_until = at + used * window / rate
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
