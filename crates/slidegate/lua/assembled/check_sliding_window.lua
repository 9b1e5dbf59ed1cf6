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
  '<I7I7I7I7I7I7',
  charged, now,
  -- [numbers]
  settled, stop, previous, current
)
if needed > used then needed = used end
if cost > 0 then
  -- [charge]
  current, used = current + cost, used + cost
end
if cost > 0 or moved and used > 0 then
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
return numbers
