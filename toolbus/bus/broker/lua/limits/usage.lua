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
  for j, count in ipairs({'calls', 'errors', 'ms', 'bytes'}) do
    local added = redis.pcall('HINCRBY', KEYS[1], count .. pair, ARGV[i + j])
    -- A value that can't be added to begins anew.
    if type(added) == 'table' and not added.err:find('WRONGTYPE', 1, true) then redis.call('HSET', KEYS[1], count .. pair, ARGV[i + j]) end
  end
end
redis.call('PEXPIRE', KEYS[1], ARGV[1])
return redis.status_reply('OK')
