-- include creations/_ended
-- Let one process run a task that is queued, or whose lease has ended. Running it again changes nothing.
-- KEYS: 1 the task, 2 queued tasks, 3 running ones, 4 ended ones
-- ARGV: 1 id, 2 token of this claim, 3 worker, 4 lease (ms), 5 TTL (ms), 6 most attempts, 7 result of a task that had as many,
--       8 time that ended tasks are kept (ms), 9 most ended tasks that are listed, 10 channel that tells of tasks
-- Returns {"yours"}, {"held"} (another process runs it), or {"gone"} (nobody can run it any more).
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local known = redis.pcall('HMGET', KEYS[1], 'status', 'claim', 'until', 'lease', 'attempts', 'started', 'cancel')
local status = not known.err and known[1]
if status ~= 'queued' and status ~= 'running' then
  redis.call('ZREM', KEYS[2], ARGV[1])
  redis.call('ZREM', KEYS[3], ARGV[1])
  return {'gone'}
end
local attempts = tonumber(known[5] or '') or 0
if status == 'running' and known[2] ~= ARGV[2] then
  -- A lease that ends further ahead than it is long was set before the clock was set back, or by another client.
  local ends, length = tonumber(known[3] or ''), tonumber(known[4] or '')
  if ends and length and now < ends and ends <= now + length then return {'held'} end
end
local function over(word, result)
  put_end(KEYS[1], KEYS[2], KEYS[3], KEYS[4], ARGV[1], word, result, now, tonumber(ARGV[8]), tonumber(ARGV[9]), ARGV[10])
  return {'gone'}
end
if known[2] ~= ARGV[2] then
  if known[7] == '1' then return over('cancelled', '') end
  if attempts >= tonumber(ARGV[6]) then return over('failed', ARGV[7]) end
  attempts = attempts + 1
end
local ends = string.format('%.0f', now + ARGV[4])
redis.call('HSET', KEYS[1], 'status', 'running', 'claim', ARGV[2], 'worker', ARGV[3], 'attempts', attempts, 'until', ends, 'lease', ARGV[4],
  'started', known[6] or string.format('%.0f', now))
redis.call('PEXPIRE', KEYS[1], ARGV[5])
redis.call('ZADD', KEYS[3], ends, ARGV[1])
redis.call('PEXPIRE', KEYS[3], ARGV[5])
redis.call('ZREM', KEYS[2], ARGV[1])
redis.call('PUBLISH', ARGV[10], 'running ' .. ARGV[1])
return {'yours'}
