-- Assembled from the files of `lua/` that are named below. Do not edit: change those and run
-- SLIDEGATE_ASSEMBLE_LUA=1 cargo test -p slidegate --features redis assembled
-- Sent without comments; line NN here is line NN + 1 in an error of the server.

-- check.lua
--
-- Checks one key, for one request or for a batch of requests. Most decisions are made here;
-- `decide.lua` does everything else.
--
-- KEYS[1]: the key.
-- ARGV[1]: the latest server time at which the call may still charge (integer, us).
-- ARGV[2]: the quota, packed as the piece `quota` unpacks it (bytes).
-- ARGV[3], ARGV[5], ...: the costs of the requests, in order (integers), each followed by the
--   number of consecutive requests of that cost (integer; 1 if missing at the end).
-- Reply: bytes, 7 for each number: requests charged, now (us), and the `numbers` of the algorithm
--   before anything was charged. A list of numbers would take Redis longer than reading the key. If
--   a log reports its oldest runs, the reply is a list: these bytes, then timestamp and cost of
--   each run. {-1, now} if the call is too late.
-- Layout: docs/redis-layout.md. Rust twin: `State` in `src/algorithm.rs`, which computes the
--   decisions from the reply as for the memory store. Steps have the names of the twin's functions:
--   `settle`, `charge`.

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
local cost, charged, needed = 0, 0, 0
for request = 3, #argv, 2 do
  local asks, requests = argv[request] + 0, argv[request + 1]
  -- In this order every sum is below 2^53, unless the cost can never fit.
  local over = asks - capacity + used + cost
  if asks == 0 then
    charged = charged + (requests or 1)
  elseif over > 0 then
    if over > needed and asks <= capacity then needed = over end
  elseif not requests then
    cost, charged = cost + asks, charged + 1
  else
    -- If one does not fit, no later one of the same cost does.
    local fit = math.floor(-over / asks) + 1
    if fit < requests + 0 then
      needed = math.max(needed, over + fit * asks)
    else
      fit = requests + 0
    end
    cost, charged = cost + fit * asks, charged + fit
  end
end
local numbers = struct.pack(
  -- [widths]
  '<I7I7I7I7I7',
  charged, now,
  -- [numbers]
  settled, level, fraction
)
if needed > used then needed = used end
if cost > 0 then
  -- [charge]
  level, used = level + cost, used + cost
end
if cost > 0 or moved and used > 0 then
  -- [save]
  -- The TTL is the time until it is empty and up to five seconds more. `at` may be a second ahead.
  local ttl_us = used * window / rate + at - now
  -- A large burst may take longer to drain than Redis takes: 2^61, some 73,000 years.
  if ttl_us > 2305843009213693952 then ttl_us = 2305843009213693952 end
  call('SET', key, struct.pack('<BI6I7I7I6', 19, window, at, level, fraction),
    'PX', math.floor(ttl_us / 1000) + 4000)
end
return numbers
