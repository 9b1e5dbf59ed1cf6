-- wrk: a check of one key, or of one of a million at random, in the words of the server that `SERVER` in the environment
-- names. `KEYS` says how many keys, `LIMIT` what throttlecrab is told of the limit with each request.
local keys = tonumber(os.getenv("KEYS") or "1")
local limit = os.getenv("LIMIT") or "100"
local ready = {}

local function request_for(key)
  local path, body = "/v1/check", string.format('{"attributes":{"user":"user-%07d"}}', key)
  if os.getenv("SERVER") == "throttlecrab" then
    path = "/throttle"
    body = string.format(
      '{"key":"user-%07d","max_burst":%s,"count_per_period":%s,"period":%s}',
      key, limit, limit, limit == "100" and "60" or "3600"
    )
  end
  return wrk.format("POST", path, { ["content-type"] = "application/json" }, body)
end

function init()
  math.randomseed(os.time() + tonumber(tostring(ready):match("0x(%x+)"), 16) % 100000)
  if keys == 1 then ready[1] = request_for(0) end
end

function request()
  return ready[1] or request_for(math.random(0, keys - 1))
end
