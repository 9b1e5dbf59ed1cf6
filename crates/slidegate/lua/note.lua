-- Replaces the note that instances share, if the stored one still is the one that the writer read.
-- KEYS[1]: the note. ARGV[1]: the first line that was read, without its line feed; empty if there was no note.
-- ARGV[2]: the new value, whole. Reply: 1 if it was written, 0 if another note, or none, is stored.
-- A value that is not a note is an error and stays as it is. The note has no TTL: it is not usage.
local have = redis.call('GETRANGE', KEYS[1], '0', '63')
local line = have:match('^(%d+ %x+ %x+)\n') or have:match('^(%d+)\n') or ''
if have ~= '' and line == '' then return redis.error_reply('SLIDEGATE value is not a note of layout 1') end
if line ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[2])
return 1
