#!lua flags=allow-oom
-- Keep a host alive for another lease: its routes, those that have changed, and the tools that it serves alone. Or let go of them.
-- KEYS: 1 hosts, 2 routes of this host, 3.. the claim of each tool that it serves alone, wants to, or gives up
-- ARGV: 1 host, 2 lease (ms), 0 when the host leaves, "" to give up the claims and nothing else, 3 how many routes have changed, then tool
--       and route of each, then tools whose routes are gone
-- Returns {how many routes it has now, {1 for each claim that is its own, otherwise 0, ...}}
local hosts, routes, host, lease, changed = KEYS[1], KEYS[2], ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local stays = lease and lease > 0

-- A key that is of another type than it should be was written by a stranger; what belongs there is written anew.
local function of_kind(key, kind)
  local found = redis.call('TYPE', key).ok
  if found ~= 'none' and found ~= kind then redis.call('DEL', key) end
end

of_kind(hosts, 'zset')
of_kind(routes, 'hash')
if lease == 0 then
  redis.call('ZREM', hosts, host)
  redis.call('DEL', routes)
elseif stays then
  for i = 4, 3 + 2 * changed, 2 do redis.call('HSET', routes, ARGV[i], ARGV[i + 1]) end
  for i = 4 + 2 * changed, #ARGV do redis.call('HDEL', routes, ARGV[i]) end
  redis.call('PEXPIRE', routes, lease)
  redis.call('ZREMRANGEBYSCORE', hosts, '-inf', '(' .. string.format('%.0f', now))
  redis.call('ZADD', hosts, now + lease, host)
  -- Other hosts may have longer leases.
  if redis.call('PTTL', hosts) < lease then redis.call('PEXPIRE', hosts, lease) end
end
local claims = {}
for i = 3, #KEYS do
  of_kind(KEYS[i], 'string')
  local holder = redis.call('GET', KEYS[i])
  claims[i - 2] = 0
  if not stays and holder == host then
    redis.call('DEL', KEYS[i])
  elseif stays and (not holder or holder == host) then
    redis.call('SET', KEYS[i], host, 'PX', lease)
    claims[i - 2] = 1
  end
end
return {redis.call('HLEN', routes), claims}
