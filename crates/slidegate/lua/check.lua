-- Checks one key: most decisions. `decide.lua` does everything else.
--
-- ARGV: the latest server time at which anything may still be charged; the quota, packed; the costs of the requests in
-- the order they came, each with how many have it one after another, which may be left out at the end for one. Replies
-- requests charged, now, and what the algorithm tells, in 7 bytes each: to list numbers one by one costs a server more than
-- to read its key. The library computes every decision from that as it does from its own memory. A log that tells its runs
-- as well replies {those bytes, run, run, ...}. {-1, now} when it is too late.

--[list]
told = { told }

--[check]
local call, argv = redis.call, ARGV
local time = call('TIME')
local now = time[1] * 1000000 + time[2]
if now > argv[1] + 0 then return { -1, now } end
local key, packed = KEYS[1], argv[2]
--@quota
--@load
if wrong then return redis.error_reply('SLIDEGATE value is ' .. wrong) end
local cost, charged, needed = 0, 0, 0
for request = 3, #argv, 2 do
  local asked, requests = argv[request] + 0, argv[request + 1]
  -- In this order every sum is below 2^53, unless the cost can never fit.
  local over = asked - capacity + used + cost
  if asked == 0 then
    charged = charged + (requests or 1)
  elseif over > 0 then
    if over > needed and asked <= capacity then needed = over end
  elseif not requests then
    cost, charged = cost + asked, charged + 1
  else
    -- Once one does not fit, no other of the same cost does.
    local fit = math.floor(-over / asked) + 1
    if fit < requests + 0 then
      needed = math.max(needed, over + fit * asked)
    else
      fit = requests + 0
    end
    cost, charged = cost + fit * asked, charged + fit
  end
end
local told = struct.pack(
  --@widths
  charged, now,
  --@told
)
if needed > used then needed = used end
--@needed
if cost > 0 then
  --@charge
  --@save
elseif moved and used > 0 then
  --@save
end
return told
