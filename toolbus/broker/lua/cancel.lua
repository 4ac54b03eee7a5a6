#!lua flags=allow-oom
-- Cancel a call: remove it if no worker has it, else tell the workers.
-- KEYS: 1 request stream, 2 cancelled calls
-- ARGV: 1 entry, 2 call id, 3 milliseconds until its deadline, 4 wake channel
-- Returns "removed" (it never ran), "signalled" or "gone" (already finished).
local pending = redis.pcall('XPENDING', KEYS[1], 'g', ARGV[1], ARGV[1], 1)
if pending.err or #pending == 0 then
  return redis.call('XDEL', KEYS[1], ARGV[1]) == 1 and 'removed' or 'gone'
end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', now)
redis.call('ZADD', KEYS[2], now + ARGV[3], ARGV[2])
if redis.call('PTTL', KEYS[2]) < tonumber(ARGV[3]) then redis.call('PEXPIRE', KEYS[2], ARGV[3] + 1000) end
redis.call('PUBLISH', ARGV[4], 'cancel ' .. ARGV[2])
return 'signalled'
