-- Checks one key, for one request or for several that are batched: most decisions. `decide.lua` does
-- everything else.
--
-- KEYS[1]: the key.
-- ARGV[1]: the latest server time at which anything may still be charged (integer, us).
-- ARGV[2]: the quota, packed as `quota` below unpacks it (bytes).
-- ARGV[3], ARGV[5], ...: the costs of the requests in the order they came (integers); after each the number of
--   requests that have it one after another (integer, 1 if it is missing at the end).
-- Reply: bytes, 7 for each number: requests charged, now (us), and the `numbers` of the algorithm as the key was
--   found: to list them one by one costs a server more than to read its key. A log that tells its oldest runs as
--   well replies a list: those bytes, then stamp and cost of each run. {-1, now} when it is too late.
-- Layout: docs/redis-layout.md. Rust twin: `State` in `src/algorithm.rs`, which computes the decisions from the
--   reply as it does for the memory store. A step here has the name of the twin's function: `settle`, `charge`.

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
