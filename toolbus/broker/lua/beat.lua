#!lua flags=allow-oom
-- Extend the leases of one process's instances, and the lives of their keys. Never publishes.
-- KEYS: 1 live instances, 2 paused services, 3.. keys to keep alive
-- ARGV: 1 lease (ms), 2 TTL of the keys (ms), then members of the live set
-- Returns {server time (ms), {index of a member that is no longer registered, ...}, {paused service, ...}}
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local missing, paused = {}, {}
for i = 3, #ARGV do
  if redis.call('ZSCORE', KEYS[1], ARGV[i]) then
    redis.call('ZADD', KEYS[1], 'XX', now + ARGV[1], ARGV[i])
  else
    missing[#missing + 1] = i - 2
  end
  local service = ARGV[i]:match('^(.-)/')
  if redis.call('SISMEMBER', KEYS[2], service) == 1 then paused[#paused + 1] = service end
end
redis.call('PEXPIRE', KEYS[1], ARGV[2])
for i = 3, #KEYS do redis.call('PEXPIRE', KEYS[i], ARGV[2]) end
return {string.format('%.0f', now), missing, paused}
