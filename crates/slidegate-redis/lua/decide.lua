-- Decides requests in order, each on all of its keys or on none, at one time.
--
-- KEYS: the key of each part of the requests; with `once`, the last one stores the first reply.
-- ARGV: the latest server time at which the call may still charge (integer, us); `once` or `apply`;
--   the number of requests, and the cost of each (integers); then for each part
--   - the letter of its algorithm, or the number of an earlier part with the same key,
--   - its mode, see below,
--   - its quota, packed as the piece `quota` of the algorithm unpacks it (bytes),
--   - its own cost (integer); empty if it is the request's;
--   with `once`, the last argument is how long the reply is stored (integer, ms).
-- A mode has five letters: the verb (`c`heck, `p`eek, `r`efund, pe`n`alize); `e`nforced or
--   `s`hadow; how an excess is handled (`-` deny, `+` charge, `!` count); the role (`d`eciding,
--   `t`ogether, `k` refusals, which belong to the last part before them of another role); `o` if it
--   is denied while over its limit, otherwise `-`; in a call that knows holds, `l` if its instance settles or asks for
--   a lease of the key.
-- Reply: {requests that are not denied, now, {the algorithm's `numbers`} of each key before
--   anything was charged, {its `numbers` afterwards, the cost refunded} of each refund, {amount, length (us)} of
--   each lease, with the amount 0 if it was not granted}; {-1, now} if the call is too late.
-- Layout: docs/redis-layout.md. Rust twin: `all_or_none` in `src/all_or_nothing.rs`: change both or neither.

--[open]
-- The usage of a key, and the functions that report and change it.
opens.ALGORITHM = function(key, now, packed)
  --@quota
  --@settle
  local function report(needed)
    local numbers = {
      --@numbers
    }
    --@needed
    return numbers
  end
  local function save()
    --@save
  end
  local function charge(cost)
    --@charge
    return save()
  end
  local function refund(cost)
    --@refund
    --@refund_kept
    if refunded > 0 and used == 0 then
      call('DEL', key)
    elseif refunded > 0 then
      local failed = save()
      if failed then return failed end
    end
    return refunded
  end
  --@most
  return used, capacity, most, wrong, moved, report, charge, save, refund, is_own
end

--[decide]
local call, argv = redis.call, ARGV
local time = call('TIME')
local now = time[1] * 1000000 + time[2]
if now > argv[1] + 0 then return { -1, now } end
local requests, parts = argv[3] + 0, #KEYS
-- With `once`, the last key stores the first reply to the same idempotency key.
local once
if argv[2] == 'once' then
  once, parts = KEYS[parts], parts - 1
  local first = call('GET', once)
  if first then return cmsgpack.unpack(first) end
end
--@parts
local opens = {}
--@opens
--@opens_with_holds
-- Letters of the modes.
local CHECK, PEEK, REFUND, PENALIZE = 99, 112, 114, 110
local ENFORCED, CHARGE, COUNT, OVER = 101, 43, 33, 111
local TOGETHER, REFUSALS = 116, 107
-- By part. `at` is the first part with the same key.
local verb, enforced, excess, role, over, own, at = {}, {}, {}, {}, {}, {}, {}
-- By key, at the index of its first part.
local used, capacity, most, moved, adds, needed, writes = {}, {}, {}, {}, {}, {}, {}
local report, charge, save, refund, is_own = {}, {}, {}, {}, {}
for p = 1, parts do
  local from = 3 + requests + (p - 1) * 4
  local letter = argv[from + 1]
  verb[p], enforced[p], excess[p], role[p], over[p] = argv[from + 2]:byte(1, 5)
  enforced[p], over[p] = enforced[p] == ENFORCED, over[p] == OVER
  own[p] = tonumber(argv[from + 4])
  --@verbs
  if opens[letter] then
    local wrong
    at[p], adds[p], needed[p] = p, 0, 0
    used[p], capacity[p], most[p], wrong, moved[p], report[p], charge[p], save[p], refund[p], is_own[p] =
      opens[letter](KEYS[p], now, argv[from + 3])
    if wrong then return redis.error_reply('SLIDEGATE value ' .. p .. ' is ' .. wrong) end
  else
    at[p] = letter + 0
  end
end

local reply = { 0, now }
for request = 4, 3 + requests do
  local cost = argv[request] + 0
  local is_denied, by_peek, denied = false, false, {}
  -- Whether all parts that deny together are denied, and whether one of them is a peek.
  local together, is_peek_together
  -- Usage of the second keys of a peek. They follow it, so parts are decided from last to first.
  local added = 0
  for p = parts, 1, -1 do
    local k = at[p]
    if verb[p] == CHECK or verb[p] == PEEK then
      local asks = own[p] or cost
      if excess[p] == CHARGE and asks > 1 then asks = 1 end
      -- In this order every sum is below 2^53, unless the cost can never fit.
      local excess_cost = asks - capacity[k] + used[k] + adds[k]
      if asks > 0 and excess_cost > 0 then
        denied[p] = true
        if excess_cost > needed[k] and asks <= capacity[k] then needed[k] = excess_cost end
      elseif over[p] then
        local least = excess[p] == CHARGE and 1 or 0
        denied[p] = least - capacity[k] + used[k] + adds[k] + added > 0
      end
      --@full
    end
    local denies = denied[p] == true and enforced[p]
    if role[p] == REFUSALS then
      if verb[p] == PEEK then added = added + used[k] + adds[k] end
    else
      added = 0
      if role[p] == TOGETHER then
        together = together ~= false and denies
        is_peek_together = is_peek_together or verb[p] == PEEK
      elseif denies then
        is_denied, by_peek = true, by_peek or verb[p] == PEEK
      end
    end
  end
  if together then is_denied, by_peek = true, by_peek or is_peek_together end
  if not is_denied then reply[1] = reply[1] + 1 end
  for p = 1, parts do
    if verb[p] == CHECK then
      local k, takes = at[p], own[p] or cost
      local passes = not is_denied and not denied[p]
      if excess[p] == COUNT or passes and excess[p] == CHARGE then
        adds[k] = math.max(adds[k], math.min(adds[k] + takes, most[k] - used[k]))
        writes[k] = writes[k] or excess[p] == COUNT and takes > 0 and is_own[k]
        -- The wait includes a denied cost that was counted.
        local excess_cost = takes - capacity[k] + used[k] + adds[k]
        if excess[p] == COUNT and excess_cost > needed[k] and takes <= capacity[k] then
          needed[k] = excess_cost
        end
      elseif passes then
        adds[k] = adds[k] + takes
        --@reserve
      else
        denied[p] = true
      end
      writes[k] = writes[k] or moved[k]
    end
  end
  -- The part that the refusals after it belong to.
  local base
  for p = 1, parts do
    if role[p] ~= REFUSALS then base = p end
    if verb[p] == PENALIZE then
      local is_done = true
      if role[p] == REFUSALS then
        is_done = not by_peek and excess[base] ~= COUNT and (verb[base] ~= CHECK or denied[base])
      end
      if is_done then
        local k, takes = at[p], own[p] or cost
        adds[k] = math.max(adds[k], math.min(adds[k] + takes, most[k] - used[k]))
        -- A penalty on a full key is written too, so that all stores have settled to the same time.
        writes[k] = writes[k] or takes > 0 and is_own[k]
      end
    end
  end
end

--@grant
local charged = false
for p = 1, parts do
  if at[p] == p then
    reply[#reply + 1] = report[p](math.min(needed[p], used[p]))
    if adds[p] > 0 then
      charged = true
      local failed = charge[p](adds[p])
      if failed then return failed end
    elseif writes[p] and used[p] > 0 then
      save[p]()
    end
  end
end
-- A call with refunds is one request.
for p = 1, parts do
  if verb[p] == REFUND then
    local k = at[p]
    local report_key, refund_key = report[k], refund[k]
    local from = 3 + requests + (p - 1) * 4
    if adds[k] > 0 or writes[k] then
      -- The key was written: read it again.
      local _
      _, _, _, _, _, report_key, _, _, refund_key =
        opens[argv[3 + requests + (k - 1) * 4 + 1]](KEYS[k], now, argv[from + 3])
    end
    local refunded = refund_key(own[p] or argv[4] + 0)
    writes[k] = true
    reply[#reply + 1] = report_key(0)
    reply[#reply][#reply[#reply] + 1] = refunded
  end
end
--@granted
if once and charged and reply[1] > 0 then
  call('SET', once, cmsgpack.pack(reply), 'PX', argv[#argv])
end
return reply
