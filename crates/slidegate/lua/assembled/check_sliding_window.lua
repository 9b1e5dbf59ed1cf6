-- Assembled from the files of `lua/` that are named below. Do not edit: change those and run
-- SLIDEGATE_ASSEMBLE_LUA=1 cargo test -p slidegate --features redis assembled
-- Sent without comments; line NN here is line NN + 1 in an error of the server.

-- check.lua
--
-- Checks one key, for one request or for several that are batched: most decisions. `decide.lua` does
-- everything else.
--
-- KEYS[1]: the key.
-- ARGV[1]: the latest server time at which anything may still be charged (integer, us).
-- ARGV[2]: the quota, packed as `quota` below unpacks it (bytes).
-- ARGV[3], ARGV[5], ...: the costs of the requests in the order they came (integers); after each the number of
--   requests that have it one after another (integer, 1 if it is missing at the end).
-- Reply: bytes, 7 for each number: requests charged, now (us), and the `numbers` of the algorithm as the key was
--   found: to list them one by one costs a server more than to read its key. A log that tells its oldest runs as
--   well replies a list: those bytes, then stamp and cost of each run. {-1, now} when it is too late.
-- Layout: docs/redis-layout.md. Rust twin: `State` in `src/algorithm.rs`, which computes the decisions from the
--   reply as it does for the memory store. A step here has the name of the twin's function: `settle`, `charge`.

-- sliding_window.lua
--
-- Sliding window: two counters, the older one weighted by how much of it the window still overlaps, rounded up.
-- Twin of `src/algorithm/sliding_window.rs`: change both or neither.

-- shared.lua
--
-- What the algorithms share. In the files of `lua/` a piece begins at a line `--[name]`, and a line `--@name`
-- stands for that piece; `lua/assembled/` has the scripts whole.
--
-- Every script is a straight line of pieces rather than functions over tables, since making those costs more than the
-- rest of a decision. Numbers are whole, in microseconds or cost, and below 2^53, where a double counts every integer, and
-- where the floor of a quotient of two such numbers is exact. Commands get numbers that never change as text: servers
-- take a quarter of a microsecond to write one.

local call, argv = redis.call, ARGV
local time = call('TIME')
local now = time[1] * 1000000 + time[2]
if now > argv[1] + 0 then return { -1, now } end
local key, packed = KEYS[1], argv[2]
-- [quota]
-- `head` begins a compact value under this window; 0 where such a window has none.
local window, capacity, head = struct.unpack('<I6I7I3', packed)
-- [settle]
local tag, stop, previous, current, settled, moved, wrong = 18, 0, 0, 0, now, false, nil
-- The end of the window after which the stored value expires.
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
      -- The window of a compact value that does not begin with `head`: a count of seconds, minutes, hours or days.
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
    -- `raw` is no value of this algorithm, tagged `tag`. One of another algorithm counts as none: that starts afresh. 31
    -- marks a log that was found cut off.
    local first = raw:byte(1)
    if not first or not (first >= 17 and first <= 20 or first == 33 or first == 34 or first == 31) then
      wrong = 'not of layout 1 or 2: its first byte is ' .. tostring(first)
    elseif first % 16 == tag - 16 or first == 31 then
      wrong = 'damaged: it has ' .. #raw .. ' bytes'
    end
  end
  if current > 0 and counted == window then expires = stop end
end
local here = now - now % counted + counted
local afresh
if here ~= stop then
  if stop - counted == here and here - now <= (counted < 1000000 and counted or 1000000) then
    settled = here
  elseif now < stop then
    -- A large step back.
    afresh, moved = here, true
  else
    previous = stop == here - counted and current or 0
    current, stop = 0, here
  end
end
if counted ~= window then afresh = settled - settled % window + window end
if afresh then
  -- All that may count, counts as charged in the window that ends then.
  current = math.min(current + previous, math.max(capacity, current, previous))
  previous, stop = 0, afresh
end
local used = current
if previous > 0 then
  local product = previous * (stop - settled)
  local weighted = math.ceil(product / window)
  if product >= 9007199254740992 then
    -- [mul_div]
    -- floor(a * b / c) and the remainder, for c below 2^45. A quotient past 2^53 is only known to be about that large.
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
      local place = 562949953421312
      while place >= 1 do
        local digit = math.floor(left / place)
        left = left - digit * place
        rest = rest * 128 + digit * part
        local share = math.floor(rest / c)
        rest = rest - share * c
        quotient = quotient * 128 + share
        place = place / 128
      end
      return a * whole + quotient, rest
    end
    local rest
    weighted, rest = mul_div(previous, stop - settled, window)
    if rest > 0 then weighted = weighted + 1 end
  end
  used = math.min(current + weighted, 9007199254740991)
end
if wrong then return redis.error_reply('SLIDEGATE value is ' .. wrong) end
local cost, charged, needed = 0, 0, 0
for request = 3, #argv, 2 do
  local asked, requests = argv[request] + 0, argv[request + 1]
  -- In this order every sum is below 2^53, unless the cost can never fit.
  local over = asked - capacity + used + cost
  if asked == 0 then
    charged = charged + (requests or 1)
  elseif over > 0 then
    if over > needed and asked <= capacity then needed = over end
  elseif not requests then
    cost, charged = cost + asked, charged + 1
  else
    -- Once one does not fit, no other of the same cost does.
    local fit = math.floor(-over / asked) + 1
    if fit < requests + 0 then
      needed = math.max(needed, over + fit * asked)
    else
      fit = requests + 0
    end
    cost, charged = cost + fit * asked, charged + fit
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
    -- In place, which keeps the time to live: half of what it costs to set it again.
    call('SETRANGE', key, '0', value)
  else
    -- `stop` may be a second further ahead than its window is long.
    local lives = stop - now
    if current > 0 then lives = lives + window end
    call('SET', key, value, 'PX', math.floor(lives / 1000) + 4000)
  end
end
return numbers
