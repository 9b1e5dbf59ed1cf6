-- Checks one key, for one request or for a batch of requests. Most decisions are made here;
-- `decide.lua` does everything else.
--
-- KEYS[1]: the key.
-- ARGV[1]: the latest server time at which the call may still charge (integer, us).
-- ARGV[2]: the quota, packed as the piece `quota` unpacks it (bytes).
-- ARGV[3], ARGV[5], ...: the costs of the requests, in order (integers), each followed by the
--   number of consecutive requests of that cost (integer; 1 if missing at the end).
-- Reply: bytes, 7 for each number: requests charged, now (us), and the `numbers` of the algorithm
--   before anything was charged. A list of numbers would take Redis longer than reading the key. If
--   a log reports its oldest runs, the reply is a list: these bytes, then timestamp and cost of
--   each run. {-1, now} if the call is too late.
-- Layout: docs/redis-layout.md. Rust twin: `State` in `src/algorithm.rs`, which computes the
--   decisions from the reply as for the memory store. Steps have the names of the twin's functions:
--   `settle`, `charge`.

--[list]
numbers = { numbers }

--[check]
local call, argv = redis.call, ARGV
local time = call('TIME')
local now = time[1] * 1000000 + time[2]
if now > argv[1] + 0 then return { -1, now } end
local key, packed = KEYS[1], argv[2]
--@quota
--@settle
if wrong then return redis.error_reply('SLIDEGATE value is ' .. wrong) end
local cost, charged, needed = 0, 0, 0
for request = 3, #argv, 2 do
  local asks, requests = argv[request] + 0, argv[request + 1]
  -- In this order every sum is below 2^53, unless the cost can never fit.
  local over = asks - capacity + used + cost
  if asks == 0 then
    charged = charged + (requests or 1)
  elseif over > 0 then
    if over > needed and asks <= capacity then needed = over end
  elseif not requests then
    cost, charged = cost + asks, charged + 1
  else
    -- If one does not fit, no later one of the same cost does.
    local fit = math.floor(-over / asks) + 1
    if fit < requests + 0 then
      needed = math.max(needed, over + fit * asks)
    else
      fit = requests + 0
    end
    cost, charged = cost + fit * asks, charged + fit
  end
end
local numbers = struct.pack(
  --@widths
  charged, now,
  --@numbers
)
if needed > used then needed = used end
--@needed
if cost > 0 then
  --@charge
end
if cost > 0 or moved and used > 0 then
  --@save
end
return numbers
