#!lua flags=allow-oom
-- Extend the lease of the process that holds a conversation, or end it; one that nothing was written to goes then.
-- KEYS: 1 the conversation, 2 the conversations of the namespace
-- ARGV: 1 token, 2 lease (ms); 0 lets go, 3 TTL (ms), 4 digest of its name
-- Returns 1, or 0 when another process holds it, or it is gone.
local known = redis.call('HMGET', KEYS[1], 'holder', 'next')
if known[1] ~= ARGV[1] then return 0 end
if ARGV[2] == '0' and known[2] == '0' then
  redis.call('DEL', KEYS[1])
  redis.pcall('ZREM', KEYS[2], ARGV[4])
  return 1
end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('HSET', KEYS[1], 'until', string.format('%.0f', now + ARGV[2]), 'lease', ARGV[2])
redis.call('PEXPIRE', KEYS[1], math.max(tonumber(ARGV[3]), 2 * ARGV[2]))
return 1
