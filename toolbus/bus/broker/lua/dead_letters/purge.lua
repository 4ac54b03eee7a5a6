#!lua flags=allow-oom
-- include transport/_moving
-- include finish/_reply
-- include publish/_free
-- Remove one queued request, if no worker has it, and answer its caller.
-- KEYS: 1 request stream, and of a call with an idempotency key: 2 its record, 3 its started mark
-- ARGV: 1 entry, 2 reply stream or "", 3 frames (a JSON list), 4 call id: its key is free again, unless it began `once` work
-- Returns 1 when it was removed.
local pending = redis.pcall('XPENDING', KEYS[1], 'g', ARGV[1], ARGV[1], 1)
local waits = pending.err or #pending == 0 or pending[1][2]:sub(1, 1) == '~'
if not waits then return 0 end
if #redis.call('XRANGE', KEYS[1], ARGV[1], ARGV[1]) == 0 then return 0 end
local frees = KEYS[2] and is_free(KEYS[2], ARGV[4], KEYS[3], '')
if ARGV[2] ~= '' and reply(ARGV[2], ARGV[3]) == 'moving' then return try_again() end
if not pending.err then redis.call('XACK', KEYS[1], 'g', ARGV[1]) end
if frees then redis.call('DEL', KEYS[2]) end
redis.call('XDEL', KEYS[1], ARGV[1])
return 1
