#!lua flags=allow-oom
-- Give up tools that a host serves alone, so that another one may; and all of its routes when it leaves.
-- KEYS: 1 hosts, 2 routes of this host, 3.. claims
-- ARGV: 1 host, 2 "1" when it leaves
-- Returns how many claims were its own.
local released = 0
for i = 3, #KEYS do
  if redis.pcall('GET', KEYS[i]) == ARGV[1] then
    redis.call('DEL', KEYS[i])
    released = released + 1
  end
end
if ARGV[2] == '1' then
  redis.pcall('ZREM', KEYS[1], ARGV[1])
  redis.call('DEL', KEYS[2])
end
return released
