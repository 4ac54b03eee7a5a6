#!lua flags=allow-oom
-- include routes/_kind
-- Keep a host alive for another lease: its routes, those that have changed, and the tools that it serves alone.
-- KEYS: 1 hosts, 2 routes of this host, 3.. the claim of each tool that it serves alone, or wants to
-- ARGV: 1 host, 2 lease (ms), 3 how many routes have changed, then tool and route of each, then tools whose routes are gone
-- Returns {how many routes it has now, {1 for each claim that is its own, otherwise 0, ...}}
local hosts, routes, host, lease, changed = KEYS[1], KEYS[2], ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
of_kind(hosts, 'zset')
of_kind(routes, 'hash')
for i = 4, 3 + 2 * changed, 2 do redis.call('HSET', routes, ARGV[i], ARGV[i + 1]) end
for i = 4 + 2 * changed, #ARGV do redis.call('HDEL', routes, ARGV[i]) end
redis.call('PEXPIRE', routes, lease)
redis.call('ZREMRANGEBYSCORE', hosts, '-inf', '(' .. string.format('%.0f', now))
redis.call('ZADD', hosts, now + lease, host)
-- Other hosts may have longer leases.
if redis.call('PTTL', hosts) < lease then redis.call('PEXPIRE', hosts, lease) end
local claims = {}
for i = 3, #KEYS do
  of_kind(KEYS[i], 'string')
  local holder = redis.call('GET', KEYS[i])
  if not holder or holder == host then
    redis.call('SET', KEYS[i], host, 'PX', lease)
    claims[i - 2] = 1
  else
    claims[i - 2] = 0
  end
end
return {redis.call('HLEN', routes), claims}
