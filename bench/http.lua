-- wrk: a check of one key, or of a random one of a million, in the format of the server that the
-- environment variable `SERVER` names. `KEYS` is the number of keys, `LIMIT` the limit that each
-- request to throttlecrab carries.
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
