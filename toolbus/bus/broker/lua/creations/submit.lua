-- Queue a task of a coding agent. Running it again changes nothing.
-- KEYS: 1 the task, 2 queued tasks, 3 running ones
-- ARGV: 1 id, 2 token of this submission: the same for the same key of the same user, 3 spec, 4 who asked, 5 the tool that it repairs,
--       6 TTL (ms), 7 most tasks that wait or run, 8 channel that tells of tasks
-- Returns {"queued"}, {"known"} (it was submitted before), {"other"} (with another spec), {"taken"} (the id is another submission's) or
-- {"full", number of tasks}.
local known = redis.pcall('HMGET', KEYS[1], 'token', 'spec', 'about')
if known.err then return {'taken'} end
if known[1] == ARGV[2] then
  if known[2] == ARGV[3] and known[3] == ARGV[5] then return {'known'} end
  return {'other'}
end
if redis.call('EXISTS', KEYS[1]) == 1 then return {'taken'} end
local open = redis.call('ZCARD', KEYS[2]) + redis.call('ZCARD', KEYS[3])
if open >= tonumber(ARGV[7]) then return {'full', open} end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('HSET', KEYS[1], 'token', ARGV[2], 'spec', ARGV[3], 'by', ARGV[4], 'about', ARGV[5], 'status', 'queued',
  'created', string.format('%.0f', now))
redis.call('PEXPIRE', KEYS[1], ARGV[6])
redis.call('ZADD', KEYS[2], now, ARGV[1])
redis.call('PEXPIRE', KEYS[2], ARGV[6])
redis.call('PUBLISH', ARGV[8], 'queued ' .. ARGV[1])
return {'queued'}
