#!lua flags=allow-oom
-- Add to a day's usage.
-- KEYS: 1 the day
-- ARGV: 1 TTL (ms), 2 most pairs of user and tool, 3 the pair that stands for all further ones, then of each pair:
--       its name, calls, errors, milliseconds, bytes
local fields = 4
for i = 4, #ARGV, 5 do
  local pair = ARGV[i]
  if redis.call('HLEN', KEYS[1]) >= ARGV[2] * fields and redis.call('HEXISTS', KEYS[1], 'calls' .. pair) == 0 then
    pair = ARGV[3]
  end
  redis.call('HINCRBY', KEYS[1], 'calls' .. pair, ARGV[i + 1])
  redis.call('HINCRBY', KEYS[1], 'errors' .. pair, ARGV[i + 2])
  redis.call('HINCRBY', KEYS[1], 'ms' .. pair, ARGV[i + 3])
  redis.call('HINCRBY', KEYS[1], 'bytes' .. pair, ARGV[i + 4])
end
redis.call('PEXPIRE', KEYS[1], ARGV[1])
return redis.status_reply('OK')
