#!lua flags=allow-oom
-- include _reply
-- Remove one queued request, if no worker has it, and answer its caller.
-- KEYS: 1 request stream
-- ARGV: 1 entry, 2 reply stream or "", 3 frames (a JSON list)
-- Returns 1 when it was removed.
local pending = redis.pcall('XPENDING', KEYS[1], 'g', ARGV[1], ARGV[1], 1)
local waits = pending.err or #pending == 0 or pending[1][2]:sub(1, 1) == '~'
if not waits then return 0 end
if #redis.call('XRANGE', KEYS[1], ARGV[1], ARGV[1]) == 0 then return 0 end
if ARGV[2] ~= '' and reply(ARGV[2], ARGV[3]) == 'moving' then return redis.error_reply('TRYAGAIN the slot is being moved') end
if not pending.err then redis.call('XACK', KEYS[1], 'g', ARGV[1]) end
redis.call('XDEL', KEYS[1], ARGV[1])
return 1
