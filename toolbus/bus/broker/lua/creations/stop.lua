#!lua flags=allow-oom
-- include creations/_ended
-- End a task: one that waits at once, one that runs by telling its process. Running it again changes nothing.
-- KEYS: 1 the task, 2 queued tasks, 3 running ones, 4 ended ones
-- ARGV: 1 id, 2 time that ended tasks are kept (ms), 3 most ended tasks that are listed, 4 channel that tells of tasks
-- Returns its status after it, or "none".
local known = redis.pcall('HMGET', KEYS[1], 'status')
if known.err or not known[1] then return redis.status_reply('none') end
if known[1] == 'queued' then
  local time = redis.call('TIME')
  local now = time[1] * 1000 + math.floor(time[2] / 1000)
  put_end(KEYS[1], KEYS[2], KEYS[3], KEYS[4], ARGV[1], 'cancelled', '', now, tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4])
  return redis.status_reply('cancelled')
end
if known[1] == 'running' then
  redis.call('HSET', KEYS[1], 'cancel', '1')
  redis.call('PUBLISH', ARGV[4], 'cancel ' .. ARGV[1])
end
return redis.status_reply(known[1])
