-- Decides requests on all their keys or on none, in the order they came, at one time.
--
-- ARGV: the latest server time at which anything may still be charged; the verb; the number of requests and the cost of
-- each; then for each key its algorithm, `enforced` or `shadow` with a `+` if it charges excess or a `!` if it counts what
-- is denied, its quota packed, and its own cost if it is not the requests'; for `once` at last the milliseconds that its reply is kept. Replies {requests charged, now, {what the algorithm tells} for each key}; a refund
-- tells what is left, and at the end what it gave. {-1, now} when it is too late.

--[open]
-- The key as it is, and what can be done with it.
opens.ALGORITHM = function(key, now, packed)
  --@quota
  --@load
  local function tell(needed)
    local told = {
      --@told
    }
    --@needed
    return told
  end
  local function charge(cost)
    --@charge
    --@save
  end
  local function keep()
    --@save
  end
  local function refund(cost)
    --@refund
    if given > 0 and used == 0 then
      call('DEL', key)
    elseif given > 0 then
      --@save
    end
    return given
  end
  --@most
  return used, capacity, most, wrong, moved, tell, charge, keep, refund
end

--[decide]
local call, argv = redis.call, ARGV
local time = call('TIME')
local now = time[1] * 1000000 + time[2]
if now > argv[1] + 0 then return { -1, now } end
local verb, requests, keys = argv[2], argv[3] + 0, #KEYS
-- Once only: the last key holds the first reply to the same id.
local once
if verb == 'once' then
  once, keys = KEYS[keys], keys - 1
  local first = call('GET', once)
  if first then return cmsgpack.unpack(first) end
end
local opens = {}
--@opens
local used, capacity, most, enforced, excess, counts = {}, {}, {}, {}, {}, {}
local own, adds, needed, moved = {}, {}, {}, {}
local tell, charge, keep, refund = {}, {}, {}, {}
for k = 1, keys do
  local from = 3 + requests + (k - 1) * 4
  local wrong
  local mode = argv[from + 2]
  enforced[k], excess[k], counts[k] = mode:byte(1) == 101, mode:byte(-1) == 43, mode:byte(-1) == 33
  own[k] = tonumber(argv[from + 4])
  adds[k], needed[k] = 0, 0
  used[k], capacity[k], most[k], wrong, moved[k], tell[k], charge[k], keep[k], refund[k] =
    opens[argv[from + 1]](KEYS[k], now, argv[from + 3])
  if wrong then return redis.error_reply('SLIDEGATE value ' .. k .. ' is ' .. wrong) end
end

local reply = { 0, now }
if verb == 'refund' then
  for k = 1, keys do
    local given = refund[k](own[k] or argv[4] + 0)
    local told = tell[k](0)
    told[#told + 1] = given
    reply[2 + k] = told
  end
  return reply
end

for request = 4, 3 + requests do
  local cost, passes = argv[request] + 0, true
  if verb ~= 'penalize' then
    for k = 1, keys do
      local asks = own[k] or cost
      if excess[k] and asks > 1 then asks = 1 end
      -- In this order every sum is below 2^53, unless the cost can never fit.
      local over = asks - capacity[k] + used[k] + adds[k]
      if asks > 0 and over > 0 then
        if enforced[k] then passes = false end
        if over > needed[k] and asks <= capacity[k] then needed[k] = over end
      end
    end
  end
  if verb ~= 'peek' then
    if passes then reply[1] = reply[1] + 1 end
    for k = 1, keys do
      local takes = own[k] or cost
      if verb == 'penalize' or counts[k] or passes and excess[k] and used[k] + adds[k] < capacity[k] then
        adds[k] = math.max(adds[k], math.min(adds[k] + takes, most[k] - used[k]))
        -- What is denied and counted has to be waited out as well.
        local over = takes - capacity[k] + used[k] + adds[k]
        if counts[k] and over > needed[k] and takes <= capacity[k] then needed[k] = over end
      elseif passes and used[k] + adds[k] + takes <= capacity[k] then
        adds[k] = adds[k] + takes
      end
    end
  end
end
local charged = false
for k = 1, keys do
  reply[2 + k] = tell[k](math.min(needed[k], used[k]))
  if adds[k] > 0 then
    charged = true
    local failed = charge[k](adds[k])
    if failed then return failed end
  elseif verb ~= 'peek' and (moved[k] or counts[k] or verb == 'penalize') and used[k] > 0 then
    -- A penalty that found no room is written as well, so that all stores have seen the same time.
    keep[k]()
  end
end
if once and charged and reply[1] > 0 then call('SET', once, cmsgpack.pack(reply), 'PX', argv[#argv]) end
return reply
