#!lua flags=allow-oom
-- Extend the lease of the process that holds a conversation, or end it.
-- KEYS: 1 the conversation
-- ARGV: 1 token, 2 lease (ms); 0 lets go, 3 TTL (ms)
-- Returns 1, or 0 when another process holds it, or it is gone.
if redis.call('HGET', KEYS[1], 'holder') ~= ARGV[1] then return 0 end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('HSET', KEYS[1], 'until', string.format('%.0f', now + ARGV[2]), 'lease', ARGV[2])
redis.call('PEXPIRE', KEYS[1], math.max(tonumber(ARGV[3]), 2 * ARGV[2]))
return 1
