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

--[change_hold]
local call, argv = redis.call, ARGV
local time = call('TIME')
local now = time[1] * 1000000 + time[2]
if now > argv[1] + 0 then return { -1, now } end
local key, packed, change = KEYS[1], argv[2], argv[3]
--@quota
--@table
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
--@settle
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
--@most
cost = math.max(math.min(cost, most - used), 0)
if cost > 0 then
  --@charge
  --@save
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
--@header
if holds > 0 then
  call('SETRANGE', name, '0', header)
  if kind ~= SETTLE and kind ~= CANCEL then
    --@keep
    call('PEXPIRE', name, kept_ms)
  elseif cost > 0 then
    --@renew
  end
else
  --@has_usage
  -- With the last hold, usage is under its own name again.
  if has_usage then call('RENAME', key, name) else call('DEL', name) end
end
return struct.pack(
  --@widths
  cost, now,
  --@numbers
) .. struct.pack('<I7I7', before, place) .. header .. last
