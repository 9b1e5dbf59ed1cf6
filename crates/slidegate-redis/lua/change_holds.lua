-- Settles, extends or cancels the holds of one reservation, each on its own key.
--
-- KEYS: the keys; then for each the key of its usage while it has holds.
-- ARGV[1]: the latest server time at which the call may still charge (integer, us). Then for each key
--   - the letter of its algorithm,
--   - its quota, packed as the piece `quota` of the algorithm unpacks it, and how long its usage
--     lasts after its last hold (7 bytes, ms),
--   - the change, packed: the hold's id (8 bytes), the number of the change, the total cost, its
--     duration (us), the total held cost, its end (us), whether it is dropped at its end, and when it
--     was made (us).
-- Reply: {0, now, {status, cost, numbers, before} of each key}. `cost` is the cost that was charged or
--   refunded, or that did not fit. `numbers` are those of `decide.lua` after the change. `before`
--   exists only if a hold was extended to a cost: its total until then. {-1, now} if the call is too
--   late.
-- Layout: docs/redis-layout.md. Rust twin: `HeldKey::change` in `src/algorithm/held.rs`.

--[counts_still]
counts_still.ALGORITHM = function(packed, cost, made)
  --@quota
  --@still
end

--[change_holds]
local call, argv = redis.call, ARGV
local time = call('TIME')
local now = time[1] * 1000000 + time[2]
if now > argv[1] + 0 then return { -1, now } end
local opens = {}
--@opens
--@mul_div
-- The part of a cost charged at `made` that still counts, by letter: `SavedState::counts_still`. A permit is
-- returned, not refunded.
local counts_still = { P = function() return 0 end }
--@all_counts_still
-- Changes.
local SETTLE, SETTLE_PART, CANCEL, REFUND, EXTEND, EXTEND_TIME = 1, 2, 3, 4, 5, 6
-- Statuses.
local CHANGED, ALREADY_SETTLED, EXPIRED, DENIED = 1, 2, 3, 4
-- How long the end of a hold is kept to recognize repeated calls: `hold.rs`.
local DEFAULT_TTL, LONGEST_TTL = 60000000, 3600000000

local count = #KEYS / 2
local changes, all_fit = {}, true
for c = 1, count do
  local from = 2 + (c - 1) * 3
  local letter, packed, change = argv[from], argv[from + 1], argv[from + 2]
  local used, capacity, _, wrong, _, report, own, holds, save_holds =
    open_with_holds(letter, KEYS[c], KEYS[count + c], now, packed)
  local id = change:sub(1, 8)
  local place = not wrong and find(holds, id)
  wrong = wrong or holds.wrong
  if wrong then return redis.error_reply('SLIDEGATE value ' .. c .. ' is ' .. wrong) end
  local kind, total, ttl, amount, stop, forget, made = struct.unpack('<BI7I5I7I7BI7', change, 9)
  local more, excess_cost = 0, 0
  if kind == EXTEND and place then
    local _, _, held, settled, flags = hold_at(holds, place)
    if flags < ENDED then more = math.max(total - held - settled, 0) end
    excess_cost = more - capacity + used
    if more > 0 and excess_cost > 0 then all_fit = false else more = 0 end
  end
  if kind == REFUND then total = counts_still[letter](packed, total, made) end
  changes[c] = { own = own, holds = holds, save_holds = save_holds, report = report, id = id, place = place,
    kind = kind, total = total, ttl = ttl, amount = amount, is_over = now >= stop, forget = forget == 1,
    is_permit = letter == 'P', more = more, excess_cost = excess_cost, capacity = capacity, window = struct.unpack('<I6', packed) }
end

local function add_ended(holds, id, settled, stop)
  if holds.count < MOST then add(holds, id, stop, 0, settled, FORGET + ENDED) end
end

-- Carries out a change. Returns its status, the cost to charge, the cost to refund and, for an
-- extension, the total held before.
local function carry_out(one)
  local holds, id, kind, total = one.holds, one.id, one.kind, one.total
  if kind == REFUND then
    if one.place then return ALREADY_SETTLED, 0, 0 end
    if holds.count >= MOST then return CHANGED, 0, 0 end
    add_ended(holds, id, 0, holds.at + math.min(one.window, LONGEST_TTL))
    return CHANGED, 0, total
  end
  if not one.place then
    local cost = 0
    -- A permit ends with its time and charges nothing.
    if kind <= SETTLE_PART and one.is_over and not one.is_permit then
      cost = one.forget and total or math.max(total - one.amount, 0)
    end
    if cost > 0 then
      add_ended(holds, id, one.forget and cost or one.amount + cost, holds.at + DEFAULT_TTL)
    end
    return one.is_over and EXPIRED or ALREADY_SETTLED, cost, 0
  end
  local _, stop, held, settled, flags = hold_at(holds, one.place)
  local has_ended = flags >= ENDED
  if has_ended and kind > SETTLE_PART then return EXPIRED, 0, 0 end
  local cost, next_stop, before = 0, holds.at + one.ttl
  if kind <= SETTLE_PART then
    cost = math.max(total - settled, 0)
    local freed = kind == SETTLE_PART and math.min(cost, held) or held
    held, settled, holds.sum = held - freed, settled + cost, holds.sum - freed
  elseif kind == EXTEND then
    local extended = math.max(total - settled, 0)
    before = held + settled
    holds.sum, held = holds.sum - held + extended, extended
  elseif kind == CANCEL then
    holds.sum = holds.sum - held
  end
  if has_ended then
    put(holds, one.place, pack_hold(id, stop, held, settled, flags))
  elseif kind == SETTLE or kind == CANCEL then
    remove(holds, one.place)
  else
    bound(holds, next_stop)
    put(holds, one.place, pack_hold(id, next_stop, held, settled, flags))
  end
  return has_ended and EXPIRED or CHANGED, cost, 0, before
end

local reply = {}
for c = 1, count do
  local one = changes[c]
  -- A denial also writes holds that were moved with the clock.
  if not all_fit and one.kind >= EXTEND and one.holds.is_changed then one.save_holds() end
  if not all_fit and one.kind == EXTEND and one.more > 0 then
    local listed = one.more <= one.capacity and one.excess_cost or 0
    reply[c] = { DENIED, one.more, one.report(listed) }
  elseif not all_fit and one.kind >= EXTEND then
    reply[c] = { DENIED, 0, one.report(0) }
  else
    local own = one.own
    local status, cost, refunded, before = carry_out(one)
    cost = math.max(math.min(cost, own.most - own.used), 0)
    local failed
    if cost > 0 then failed = own.charge(cost) end
    if refunded > 0 then cost = own.refund(refunded) end
    if failed then return failed end
    if cost > 0 or one.holds.is_changed then one.save_holds() end
    reply[c] = { status, cost, one.report(0), before }
  end
end
return { 0, now, reply }
