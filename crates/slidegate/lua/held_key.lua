-- A key that may have holds, in the scripts for one key. What is rare is left to the scripts for any
-- number of keys: these then change nothing and reply {-2, now}. Layout: docs/redis-layout.md.

--[table]
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

--[header]
local header = struct.pack('<BI7I7I7I7I2B', 21, held, earliest, latest, now, holds, 0)

--[keep]
-- Until the last hold has ended and nothing can count any more.
local kept_ms = math.floor((latest - now) / 1000) + struct.unpack('<I7', packed, #packed - 6)

--[renew]
-- A table is kept for six seconds after its last hold at least, whichever window its TTL was set for.
-- Renewing that takes an eighth of a check, so only usage that counts longer than this does.
--@counts_until
if counts_until > latest + 4000000 then
  --@keep
  call('PEXPIRE', name, kept_ms)
end
