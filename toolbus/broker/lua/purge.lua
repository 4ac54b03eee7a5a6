#!lua flags=allow-oom
-- include _reply
-- Remove one queued request, if no worker has taken it meanwhile, and answer its caller.
-- KEYS: 1 request stream
-- ARGV: 1 entry, 2 reply stream or "", 3 frames (a JSON list)
-- Returns 1 when it was removed.
local pending = redis.pcall('XPENDING', KEYS[1], 'g', ARGV[1], ARGV[1], 1)
if pending.err == nil and #pending > 0 then return 0 end
if #redis.call('XRANGE', KEYS[1], ARGV[1], ARGV[1]) == 0 then return 0 end
if ARGV[2] ~= '' and reply(ARGV[2], ARGV[3]) == 'moving' then return redis.error_reply('TRYAGAIN the slot is being moved') end
redis.call('XDEL', KEYS[1], ARGV[1])
return 1
