-- Assembled from the files of `lua/` that are named below. Do not edit: change those and run
-- SLIDEGATE_ASSEMBLE_LUA=1 cargo test -p slidegate --features redis assembled
-- Sent without comments; line NN here is line NN + 1 in an error of the server.

-- change_hold.lua
--
-- Settles, extends or cancels an open hold of one key. `change_holds.lua` does everything else.
--
-- KEYS[1]: the key. KEYS[2]: the key of its usage while it has holds.
-- ARGV[1]: the latest server time at which the call may still charge (integer, us).
-- ARGV[2]: the quota, packed as the piece `quota` unpacks it, and how long its usage lasts after its
--   last hold (7 bytes, ms).
-- ARGV[3]: the change, packed as for `change_holds.lua`.
-- ARGV[4]: where the hold is likely to be in the table, from 0 (integer); may be missing.
-- Reply: bytes, 7 for each number: the charged cost, now (us), the `numbers` of the algorithm after
--   the change, what was held and settled in all before, and the place of the hold; then the header
--   of the table of holds. If another hold took its place, that one.
--   {-1, now} if the call is too late; {-2, now} if it is one for `change_holds.lua`.
-- Layout: docs/redis-layout.md. Rust twin: `HeldKey::change` in `src/algorithm/held.rs`.

-- held_key.lua
--
-- A key that may have holds, in the scripts for one key. What is rare is left to the scripts for any
-- number of keys: these then change nothing and reply {-2, now}. Layout: docs/redis-layout.md.

-- fixed_window.lua
--
-- Fixed window: one counter, reset at every multiple of the window since the epoch.
-- Twin of `src/algorithm/fixed_window.rs`: change both or neither.

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
local key, packed, change = KEYS[1], argv[2], argv[3]
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
-- Numbers of the changes.
local SETTLE, SETTLE_PART, CANCEL, REFUND, EXTEND = 1, 2, 3, 4, 5
local kind, total, ttl = struct.unpack('<BI7I5', change, 9)
if not has_table or kind == REFUND then return { -2, now } end
local id, from, piece, found_at, last = change:sub(1, 8), holds, nil, nil, nil
local likely = tonumber(argv[4])
if likely and likely < holds then
  piece = call('GETRANGE', name, 32 + likely * 30, 61 + likely * 30)
  if #piece == 30 and piece:sub(1, 8) == id then from, found_at = likely, 1 end
end
-- The newest holds are last, except for those that took the place of an earlier one. The server
-- hashes each byte that a script reads, so pieces from the end cost less than the whole.
local size = 16
while not found_at and from > 0 do
  local to = from
  from = math.max(to - size, 0)
  piece = call('GETRANGE', name, 32 + from * 30, 31 + to * 30)
  if #piece < (to - from) * 30 then return { -2, now } end
  last = last or piece:sub(-30)
  found_at = piece:find(id, 1, true)
  while found_at and found_at % 30 ~= 1 do found_at = piece:find(id, found_at + 1, true) end
  size = size * 4
end
if not found_at then return { -2, now } end
local ends, amount, paid, flags = struct.unpack('<I7I7I7B', piece, found_at + 8)
-- Bit 1: it has ended, and is kept to recognize a repeated call.
if flags > 1 then return { -2, now } end
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
if wrong then return redis.error_reply('SLIDEGATE value is ' .. wrong) end
local cost, before, left = 0, amount + paid, amount
if kind <= SETTLE_PART then
  cost = math.max(total - paid, 0)
  left = kind == SETTLE_PART and math.max(amount - cost, 0) or 0
  paid = paid + cost
elseif kind == CANCEL then
  left = 0
elseif kind == EXTEND then
  left = math.max(total - paid, 0)
  local more = left - amount
  -- `change_holds.lua` replies a denial.
  if more > 0 and more - capacity + used + held > 0 then return { -2, now } end
end
-- [most]
-- The maximum usage of a key: `Quota::max_used`.
local most = 9007199254740991
cost = math.max(math.min(cost, most - used), 0)
if cost > 0 then
  -- [charge]
  used = used + cost
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
held = held + left - amount
local place = from + (found_at - 1) / 30
if kind == SETTLE or kind == CANCEL then
  holds = holds - 1
  if place < holds then
    -- The last one takes its place.
    last = last or call('GETRANGE', name, 32 + holds * 30, 61 + holds * 30)
    call('SETRANGE', name, 32 + place * 30, last)
  else
    last = ''
  end
else
  last = ''
  ends = now + ttl
  earliest, latest = math.min(earliest, ends), math.max(latest, ends)
  call('SETRANGE', name, 32 + place * 30, struct.pack('<c8I7I7I7B', id, ends, left, paid, flags))
end
-- [header]
local header = struct.pack('<BI7I7I7I7I2B', 21, held, earliest, latest, now, holds, 0)
if holds > 0 then
  call('SETRANGE', name, '0', header)
  if kind ~= SETTLE and kind ~= CANCEL then
    -- [keep]
    -- Until the last hold has ended and nothing can count any more.
    local kept_ms = math.floor((latest - now) / 1000) + struct.unpack('<I7', packed, #packed - 6)
    call('PEXPIRE', name, kept_ms)
  elseif cost > 0 then
    -- [renew]
    -- A table is kept for six seconds after its last hold at least, whichever window its TTL was set for.
    -- Renewing that takes an eighth of a check, so only usage that counts longer than this does.
    -- [counts_until]
    local counts_until = stop
    if counts_until > latest + 4000000 then
      -- [keep]
      -- Until the last hold has ended and nothing can count any more.
      local kept_ms = math.floor((latest - now) / 1000) + struct.unpack('<I7', packed, #packed - 6)
      call('PEXPIRE', name, kept_ms)
    end
  end
else
  -- [has_usage]
  -- Whether the key has a value, after `cost` was charged.
  local has_usage = cost > 0 or raw and raw ~= ''
  -- With the last hold, usage is under its own name again.
  if has_usage then call('RENAME', key, name) else call('DEL', name) end
end
return struct.pack(
  -- [widths]
  '<I7I7I7I7I7',
  cost, now,
  -- [numbers]
  settled, stop, used
) .. struct.pack('<I7I7', before, place) .. header .. last
