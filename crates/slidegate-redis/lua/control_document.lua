-- Replaces the control document that instances share, if the stored one is still the one that the
-- writer has read.
--
-- KEYS[1]: the control document.
-- ARGV[1]: the first line that the writer has read, without its line feed (bytes); empty if there
--   was no document.
-- ARGV[2]: the new value, whole (bytes).
-- Reply: 1 if the value was written, 0 if another document, or none, is stored. A value that is not
--   a control document is an error and stays unchanged.
-- Layout: docs/redis-layout.md. Rust twin: `src/admin/control_document.rs`. The document is not
--   usage, so it has no TTL.
local stored = redis.call('GETRANGE', KEYS[1], '0', '63')
local line = stored:match('^(%d+ %x+ %x+)\n') or stored:match('^(%d+)\n') or ''
if stored ~= '' and line == '' then
  return redis.error_reply('SLIDEGATE value is not a control document of layout 1')
end
if line ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[2])
return 1
