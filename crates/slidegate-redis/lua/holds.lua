-- Holds: cost that is set aside on a key until it is settled. Twin of `src/hold.rs` and
-- `src/algorithm/held.rs`: change both or neither. Layout: docs/redis-layout.md.
--
-- A key with holds is their table, and its usage is moved to a key of its own, in the same slot. A
-- script that knows no holds refuses the table, so it cannot overlook what is held; the store then
-- calls one that does. The end of the last hold moves the usage back.

--[in_flight]
-- There is no usage: only held cost counts.
opens.P = function(key, now, packed)
  local _, capacity = struct.unpack('<I6I7', packed)
  local function report() return {} end
  local function nothing() end
  return 0, capacity, 9007199254740991, nil, false, report, nothing, nothing, function() return 0 end, true
end

--[tables]
-- The most holds of a key, and the bytes of a table's header and of each hold.
local MOST, HEADER, ENTRY = 1024, 32, 30
-- Bits of a hold's last byte: dropped at its end instead of charged; ended, and kept to recognize
-- repeated calls.
local FORGET, ENDED = 1, 2

local function pack_hold(id, stop, held, settled, kind)
  return id .. struct.pack('<I7I7I7B', stop, held, settled, kind)
end

-- The holds as a string, with the changes since they were read. It is built on demand: most decisions
-- do not need it, and the server hashes the whole of every long string.
local function list(holds)
  local listed, patches = holds.list, holds.patches
  if not listed then listed = call('GETRANGE', holds.key, '32', HEADER + holds.count * ENTRY - 1) end
  for patch = holds.applied + 1, #patches do
    local from = patches[patch][1] - HEADER
    listed = listed:sub(1, from) .. patches[patch][2] .. listed:sub(from + ENTRY + 1)
  end
  if #listed > holds.count * ENTRY then listed = listed:sub(1, holds.count * ENTRY) end
  if #listed < holds.count * ENTRY then holds.wrong = 'damaged: its holds are cut off' end
  holds.list, holds.applied = listed, #patches
  return listed
end

-- The hold at this place: id, end, held cost, settled cost, kind.
local function hold_at(holds, place)
  local from, listed = (place - 1) * ENTRY, list(holds)
  return listed:sub(from + 1, from + 8), struct.unpack('<I7I7I7B', listed, from + 9)
end

-- The place of the hold with this id.
local function find(holds, id)
  local from, listed = 1, list(holds)
  while true do
    local at = listed:find(id, from, true)
    if not at then return nil end
    if at % ENTRY == 1 then return (at - 1) / ENTRY + 1 end
    from = at + 1
  end
end

local function bound(holds, stop)
  local is_first = holds.count == 0
  holds.earliest = is_first and stop or math.min(holds.earliest, stop)
  holds.latest = is_first and stop or math.max(holds.latest, stop)
end

-- Writes a hold at a place, which may be the next one.
local function put(holds, place, entry)
  local from = (place - 1) * ENTRY
  holds.patches[#holds.patches + 1] = { HEADER + from, entry }
  holds.is_changed = true
end

local function add(holds, id, stop, held, settled, kind)
  bound(holds, stop)
  holds.count = holds.count + 1
  put(holds, holds.count, pack_hold(id, stop, held, settled, kind))
  holds.sum = holds.sum + held
end

-- Removes a hold: the last one takes its place.
local function remove(holds, place)
  local last = holds.count
  if place < last then put(holds, place, list(holds):sub((last - 1) * ENTRY + 1, last * ENTRY)) end
  holds.count, holds.is_changed = last - 1, true
end

-- Replaces the whole table.
local function rebuild(holds, entries)
  holds.sum, holds.earliest, holds.latest, holds.count = 0, 0, 0, 0
  holds.list, holds.patches, holds.applied = table.concat(entries), {}, 0
  holds.is_changed, holds.is_rebuilt = true, true
  for place = 1, #entries do
    local stop, held = struct.unpack('<I7I7', entries[place], 9)
    bound(holds, stop)
    holds.count, holds.sum = place, holds.sum + held
  end
end

-- Opens a key with its holds at `now`. Holds whose time is over are charged as of their ends. A lease that is
-- `settled`, given as its id and what was used of it, is charged that now.
-- Returns the values of `opens`, with held cost included in the usage, and the holds.
local function open_with_holds(letter, key, usage, now, packed, settled)
  local window = struct.unpack('<I6', packed)
  local small = window < 1000000 and window or 1000000
  local linger = struct.unpack('<I7', packed, #packed - 6)
  local raw = call('GETRANGE', key, '0', '31')
  local holds = { key = key, usage = usage, sum = 0, earliest = 0, latest = 0, count = 0,
    patches = {}, applied = 0, is_stored = raw:byte(1) == 21, is_changed = false, at = now }
  local function save_holds()
    if holds.count == 0 then
      if holds.is_stored and call('EXISTS', usage) == 1 then
        call('RENAME', usage, key)
      elseif holds.is_stored then
        call('DEL', key)
      end
      return
    end
    local header = struct.pack('<BI7I7I7I7I2B', 21, holds.sum, holds.earliest, holds.latest, holds.at, holds.count, 0)
    local ttl_ms = math.floor(math.max(holds.latest - now, 0) / 1000) + linger
    if holds.is_stored and not holds.is_rebuilt then
      for _, patch in ipairs(holds.patches) do call('SETRANGE', key, patch[1], patch[2]) end
      call('SETRANGE', key, '0', header)
      call('PEXPIRE', key, ttl_ms)
      return
    end
    if not holds.is_stored then
      -- Usage left behind by an evicted table does not count.
      call('DEL', usage)
      if letter ~= 'P' and call('EXISTS', key) == 1 then call('RENAME', key, usage) end
    end
    call('SET', key, header .. list(holds), 'PX', ttl_ms)
  end
  local state = key
  if holds.is_stored then
    if #raw < HEADER then holds.wrong = 'damaged: it has ' .. #raw .. ' bytes' else
      local _, seen
      _, holds.sum, holds.earliest, holds.latest, seen, holds.count = struct.unpack('<BI7I7I7I7I2', raw)
      state = usage
      if now < seen then
        local step = seen - now
        if step <= small then
          holds.at = seen
        else
          -- A large step back of the clock: no hold lasts longer than its time from now on.
          list(holds)
          local entries = {}
          for place = 1, holds.wrong and 0 or holds.count do
            local id, stop, held, settled, kind = hold_at(holds, place)
            entries[place] = pack_hold(id, math.max(stop - step, 0), held, settled, kind)
          end
          local earliest, latest = math.max(holds.earliest - step, 0), math.max(holds.latest - step, 0)
          rebuild(holds, entries)
          holds.earliest, holds.latest = earliest, latest
        end
      end
    end
  else
    holds.list = ''
  end
  if not holds.wrong and holds.count > 0 and (settled or holds.at >= holds.earliest) then
    list(holds)
    local due, left = {}, {}
    for place = 1, holds.wrong and 0 or holds.count do
      local id, stop, held, _, kind = hold_at(holds, place)
      if stop <= holds.at then
        due[#due + 1] = { stop, kind == 0 and held or 0 }
      elseif settled and id == settled[1] then
        due[#due + 1] = { holds.at, math.min(settled[2], held) }
      else
        left[#left + 1] = holds.list:sub((place - 1) * ENTRY + 1, place * ENTRY)
      end
    end
    table.sort(due, function(one, other) return one[1] < other[1] end)
    for _, hold in ipairs(due) do
      if hold[2] > 0 then
        local used, _, most, wrong, _, _, charge = opens[letter](state, hold[1], packed)
        holds.wrong = holds.wrong or wrong
        local cost = math.min(hold[2], most - used)
        if cost > 0 and not wrong then charge(cost) end
      end
    end
    if not holds.wrong then
      local is_changed, is_rebuilt = holds.is_changed, holds.is_rebuilt
      rebuild(holds, left)
      if #due > 0 then
        save_holds()
        is_changed, is_rebuilt = false, false
        -- The last hold has ended: the key itself stores the usage again.
        if holds.count == 0 then holds.is_stored, state = false, key end
      end
      -- If the hold with the earliest end was settled, even a denial stores the next end. Otherwise
      -- every denial would search for it again.
      holds.is_changed, holds.is_rebuilt = is_changed or #due == 0 and not settled, is_rebuilt
    end
  end
  local used, capacity, most, wrong, moved, report, charge, save, refund, is_own = opens[letter](state, now, packed)
  local own = { used = used, report = report, charge = charge, save = save, refund = refund, most = most,
    is_own = is_own }
  -- The numbers of the algorithm, the header of the holds, and the holds if `needed` is not 0.
  local function report_with_holds(needed)
    local listed = ''
    if needed > 0 then listed = list(holds) end
    return { own.report(math.min(needed, own.used)),
      struct.pack('<BI7I7I7I7I2B', 21, holds.sum, holds.earliest, holds.latest, holds.at, holds.count, 0), listed }
  end
  return used + holds.sum, capacity, most + holds.sum, holds.wrong or wrong, moved, report_with_holds,
    own, holds, save_holds
end

--[opens_with_holds]
-- By part that reserves or cancels instead of charging or refunding: id, duration, kind.
local reserves = {}
-- By key: its holds, the holds to add, the hold to cancel and the lease to settle.
local tables, news, cancels, settles = {}, {}, {}, {}
-- By part: the lease that it asks for.
local leases = {}
local usage_of = {}
for p = 1, parts do usage_of[KEYS[p]] = KEYS[parts + p] end
local with_holds = {}
for letter in pairs(opens) do
  with_holds[letter] = function(key, now, packed)
    local used, capacity, most, wrong, moved, report, own, holds, save_holds =
      open_with_holds(letter, key, usage_of[key], now, packed, settles[key])
    tables[key] = holds
    local function charge(cost)
      for _, new in ipairs(news[key] or {}) do
        local id, ttl, kind, held = new[1], new[2], new[3], new[4]
        add(holds, id, holds.at + ttl, held, 0, kind)
        cost = cost - held
      end
      local failed
      if cost > 0 then failed = own.charge(cost) elseif moved and own.used > 0 then failed = own.save() end
      save_holds()
      return failed
    end
    local function save()
      local failed
      if (moved or own.is_own) and own.used > 0 then failed = own.save() end
      save_holds()
      return failed
    end
    local function refund(cost)
      if not cancels[key] then return own.refund(cost) end
      local place = find(holds, cancels[key])
      if not place then return 0 end
      local _, _, held, _, flags = hold_at(holds, place)
      if flags >= ENDED then return 0 end
      holds.sum = holds.sum - held
      remove(holds, place)
      save_holds()
      return held
    end
    -- A denial also writes holds that were moved with the clock: they must end.
    return used, capacity, most, wrong, moved or holds.is_changed, report, charge, save, refund, own.is_own
  end
end
local opens = with_holds

--[parts]
-- The second half of KEYS stores the usage of keys with holds.
parts = math.floor(parts / 2)

--[verbs]
if verb[p] == 104 or verb[p] == 120 then
  local packed = argv[from + 3]
  local id, ttl, kind = packed:sub(-21, -14), struct.unpack('<I5B', packed, #packed - 12)
  if verb[p] == 104 then
    verb[p], reserves[p] = CHECK, { id, ttl, kind }
  else
    verb[p], cancels[KEYS[p]] = REFUND, id
  end
end
-- Before how long usage lasts: a lease to settle and what was used of it, and the id of the one asked for, how much
-- this instance wants, the least that pays, and its length.
if argv[from + 2]:byte(6) then
  local packed = argv[from + 3]
  local from = #packed - 48
  settles[KEYS[p]] = { packed:sub(from, from + 7), (struct.unpack('<I7', packed, from + 8)) }
  local want, least, ttl = struct.unpack('<I7I7I5', packed, from + 23)
  leases[p] = { packed:sub(from + 15, from + 22), want, least, ttl }
end

--[full]
if reserves[p] and asks > 0 and not denied[p] and tables[KEYS[k]].count >= MOST then
  denied[p] = true
  if needed[k] == 0 then needed[k] = 1 end
end

--[reserve]
if reserves[p] and takes > 0 then
  local new = news[KEYS[k]] or {}
  local id, ttl, kind = reserves[p][1], reserves[p][2], reserves[p][3]
  new[#new + 1], news[KEYS[k]] = { id, ttl, kind, takes }, new
end

--[grant]
-- Grants leases: at most half of what is free, so that other instances find some. Twin of `slice_of` in `src/lease.rs`.
local granted = {}
for p = 1, parts do
  local lease = leases[p]
  if lease then
    local holds, slice, ttl = tables[KEYS[p]], math.min(lease[2], math.floor((capacity[p] - used[p] - adds[p]) / 2)), lease[4]
    if argv[3 + requests + (p - 1) * 4 + 1] == 'F' then
      -- No lease crosses the end of a fixed window, in which its cost could not be used any more.
      ttl = math.min(ttl, report[p](0)[1][2] - 1 - holds.at)
    end
    if slice < lease[3] or slice <= 0 or ttl < 1000 or holds.count >= MOST then
      slice = 0
    else
      local new = news[KEYS[p]] or {}
      new[#new + 1], news[KEYS[p]] = { lease[1], ttl, 0, slice }, new
      adds[p] = adds[p] + slice
    end
    granted[#granted + 1] = { slice, ttl }
  end
end

--[granted]
for _, grant in ipairs(granted) do reply[#reply + 1] = grant end
