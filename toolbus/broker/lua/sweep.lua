#!lua flags=allow-oom
-- include _registry
-- Drop instances whose lease has ended, a bounded number of them.
-- ARGV (after the common four): 5 most to drop, 6 the server's time as the caller expects it (ms), 7 lease (ms)
-- Returns how many were dropped, or -1 when the server's clock is not what was expected.
if math.abs(now - ARGV[6]) > ARGV[7] / 3 then return -1 end
local dead = redis.call('ZRANGEBYSCORE', live, '-inf', '(' .. string.format('%.0f', now), 'LIMIT', 0, ARGV[5])
for _, member in ipairs(dead) do
  redis.call('ZREM', live, member)
  strike_off(member)
end
for _, key in ipairs({services, names, meta, live, changes}) do redis.call('PEXPIRE', key, ttl) end
return #dead
