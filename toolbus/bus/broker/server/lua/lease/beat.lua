#!lua flags=allow-oom
-- include lease/_lease
-- Extend the leases of one process's instances, and the lives of their keys. Never publishes.
-- KEYS: 1 live instances, 2 paused services, 3 pulse, 4.. keys to keep alive
-- ARGV: 1 lease (ms), 2 TTL of the keys (ms), then members of the live set
-- Returns {server time (ms), {index of a member that is no longer registered, ...}, {paused service, ...}}
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local missing, paused = {}, {}
local last, quiet = read_pulse(KEYS[3])
-- One that lies too far ahead was written before the clock was set back.
if is_silence(last, now, ARGV[1]) or quiet > now + 2 * ARGV[1] then quiet = now + ARGV[1] end
for i = 3, #ARGV do
  if redis.call('ZSCORE', KEYS[1], ARGV[i]) then
    redis.call('ZADD', KEYS[1], 'XX', now + ARGV[1], ARGV[i])
  else
    missing[#missing + 1] = i - 2
  end
  local service = ARGV[i]:match('^(.-)/')
  if redis.call('SISMEMBER', KEYS[2], service) == 1 then paused[#paused + 1] = service end
end
-- Last: a beat that is broken off, by a key of another type, has prolonged nothing, and the living look dead.
redis.call('SET', KEYS[3], string.format('%.0f %.0f', now, quiet), 'PX', ARGV[2])
redis.call('PEXPIRE', KEYS[1], ARGV[2])
for i = 4, #KEYS do redis.call('PEXPIRE', KEYS[i], ARGV[2]) end
return {string.format('%.0f', now), missing, paused}
