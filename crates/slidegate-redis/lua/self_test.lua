-- Calls each command that scripts call, on a key that nothing else uses, and reports which ones the
-- server refuses.
--
-- KEYS[1], KEYS[2]: the key, and another one in its slot.
-- ARGV[1]: their TTL (integer, ms).
-- Reply: for each refused command its name and the server's error. PTTL and PEXPIRETIME are called
--   only if TIME is refused, because `clock.lua` reads the time from them.
local refused = {}
local function try(command, ...)
  local reply = redis.pcall(command, ...)
  if type(reply) == 'table' and reply.err then
    refused[#refused + 1] = command
    refused[#refused + 1] = reply.err
  end
end
try('time')
try('set', KEYS[1], '1', 'PX', ARGV[1])
try('get', KEYS[1])
try('getrange', KEYS[1], '0', '0')
try('setrange', KEYS[1], '0', '2')
try('strlen', KEYS[1])
try('pexpire', KEYS[1], ARGV[1])
if refused[1] == 'time' then
  try('pttl', KEYS[1])
  try('pexpiretime', KEYS[1])
end
if redis.pcall('exists', KEYS[1]) == 1 then
  try('rename', KEYS[1], KEYS[2])
end
try('exists', KEYS[1])
-- Redis reuses the buffer of this long name for the next third argument. Without this call, that would
-- be the value of a policy's key, which would keep the larger buffer.
redis.pcall('set', KEYS[1], '1', 'PX', ARGV[1])
try('del', KEYS[1])
redis.pcall('del', KEYS[2])
return refused
