-- Replaces the note that instances share, if it still is the one that its writer read.
local have = redis.call('GETRANGE', KEYS[1], '0', '16')
local version = have:match('^(%d+)\n')
if have ~= '' and not version then return redis.error_reply('SLIDEGATE value is not a note of layout 1') end
if (version or '0') ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[2])
return 1
