#!lua flags=allow-oom
-- include _registry
-- Drop instances whose lease has ended, a bounded number of them. ARGV (after the common four): 5 most to drop
-- Returns how many were dropped.
local dead = redis.call('ZRANGEBYSCORE', live, '-inf', '(' .. string.format('%.0f', now), 'LIMIT', 0, ARGV[5])
for _, member in ipairs(dead) do drop(member) end
for _, key in ipairs({services, names, meta, live, changes}) do redis.call('PEXPIRE', key, ttl) end
return #dead
