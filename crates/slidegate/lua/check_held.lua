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

--[check_held]
local call, argv = redis.call, ARGV
local time = call('TIME')
local now = time[1] * 1000000 + time[2]
if now > argv[1] + 0 then return { -1, now } end
local key, packed = KEYS[1], argv[2]
--@quota
--@table
--@settle
if wrong then return redis.error_reply('SLIDEGATE value is ' .. wrong) end
local asks, verb = argv[3] + 0, argv[4]
-- In this order every sum is below 2^53, unless the cost can never fit.
local over = asks - capacity + used + held
local passes = asks == 0 or over <= 0 and (verb ~= 'h' or holds < 1024)
local numbers = struct.pack(
  --@widths
  passes and 1 or 0, now,
  --@numbers
)
if has_table then numbers = numbers .. stored end
if asks > 0 and over > 0 and asks <= capacity then
  local needed = math.min(over, used)
  -- A long string costs much, as the server hashes each one whole: only such a denial reads it.
  numbers = { numbers, has_table and call('GETRANGE', name, '32', 31 + holds * 30) or '' }
  --@needed
end
local cost = passes and verb == 'c' and asks or 0
if cost > 0 then
  --@charge
end
if cost > 0 or moved and used > 0 and verb ~= 'p' then
  --@save
  if has_table then
    --@renew
  end
end
if passes and verb == 'h' and asks > 0 then
  local ttl, is_dropped = struct.unpack('<I5B', argv[5], 9)
  local ends, place = now + ttl, holds
  if place == 0 or ends < earliest then earliest = ends end
  if ends > latest then latest = ends end
  held, holds = held + asks, holds + 1
  local entry = struct.pack('<c8I7I7I7B', argv[5], ends, asks, 0, is_dropped)
  --@header
  --@keep
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
