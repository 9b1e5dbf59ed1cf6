-- Pieces that the algorithms share. In the files of `lua/`, a piece begins at a line `--[name]`,
-- and a line `--@name` includes that piece. `src/scripts.rs` says how to print whole scripts.
--
-- A script is a straight line of pieces rather than functions over tables, because creating those
-- costs more than the rest of a decision. Numbers are integers, in microseconds or cost, below
-- 2^53: there a double is exact, and so is the floor of a quotient of two such numbers. Constant
-- arguments of commands are text, because Redis takes a quarter of a microsecond to format a
-- number.

--[mul_div]
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

--[most]
-- The maximum usage of a key: `Quota::max_used`.
local most = 9007199254740991

--[counted]
-- The window of a compact value that does not begin with `head`: a number of seconds, minutes,
-- hours or days.
local code = math.floor(found / 256)
counted = math.floor(code / 4) * ({ [0] = 1000000, 60000000, 3600000000, 86400000000 })[code % 4]
found = found % 256 == tag + 16 and counted > 0

--[foreign]
-- `raw` is not a valid value of this algorithm, whose tag is `tag`. A value of another algorithm is
-- ignored: the key starts afresh. The first byte 31 marks a log that was found truncated. TAGS are the first
-- bytes of all algorithms.
local first = raw:byte(1)
if not first or first ~= 31 and not ('TAGS'):find(raw:sub(1, 1), 1, true) then
  wrong = 'not of layout 1 or 2: its first byte is ' .. tostring(first)
elseif first % 16 == tag - 16 or first == 31 then
  wrong = 'damaged: it has ' .. #raw .. ' bytes'
end
