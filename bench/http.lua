-- wrk: POST /v1/check for one key, or for one of a million at random. `KEYS` in the environment says how many.
local keys = tonumber(os.getenv("KEYS") or "1")
local ready = {}

local function request_for(key)
  local body = string.format('{"attributes":{"user":"user-%07d"}}', key)
  return wrk.format("POST", "/v1/check", { ["content-type"] = "application/json" }, body)
end

function init()
  math.randomseed(os.time() + tonumber(tostring(ready):match("0x(%x+)"), 16) % 100000)
  if keys == 1 then ready[1] = request_for(0) end
end

function request()
  return ready[1] or request_for(math.random(0, keys - 1))
end
