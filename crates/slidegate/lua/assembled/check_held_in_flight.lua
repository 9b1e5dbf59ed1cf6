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

-- in_flight.lua
--
-- A limit on what is in flight: nothing is used, what counts is what is held.
-- Twin of `src/algorithm/in_flight.rs`: change both or neither.

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
local _, capacity = struct.unpack('<I6I7', packed)
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
local settled, used, moved, wrong = now, 0, false, nil
if wrong then return redis.error_reply('SLIDEGATE value is ' .. wrong) end
local asks, verb = argv[3] + 0, argv[4]
-- In this order every sum is below 2^53, unless the cost can never fit.
local over = asks - capacity + used + held
local passes = asks == 0 or over <= 0 and (verb ~= 'h' or holds < 1024)
local numbers = struct.pack(
  -- [widths]
  '<I7I7I7',
  passes and 1 or 0, now,
  -- [numbers]
  settled
)
if has_table then numbers = numbers .. stored end
if asks > 0 and over > 0 and asks <= capacity then
  local needed = math.min(over, used)
  -- A long string costs much, as the server hashes each one whole: only such a denial reads it.
  numbers = { numbers, has_table and call('GETRANGE', name, '32', 31 + holds * 30) or '' }
end
local cost = passes and verb == 'c' and asks or 0
if cost > 0 then
end
if cost > 0 or moved and used > 0 and verb ~= 'p' then
  if has_table then
    -- [renew]
    -- A table is kept for six seconds after its last hold at least, whichever window its TTL was set for.
    -- Renewing that takes an eighth of a check, so only usage that counts longer than this does.
    -- [counts_until]
    local counts_until = now
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
