#!lua flags=allow-oom
-- include creations/_ended
-- End a task that this process runs, or give it back to be run by another one. Running it again changes nothing.
-- KEYS: 1 the task, 2 queued tasks, 3 running ones, 4 ended ones
-- ARGV: 1 id, 2 token of the claim, 3 status: "queued" gives it back, 4 result, 5 time that ended tasks are kept (ms), 6 most ended tasks
--       that are listed, 7 channel that tells of tasks, 8 milliseconds after which one that was given back may be run
-- Returns 1, or 0 when another process runs it, or it is gone.
local known = redis.pcall('HMGET', KEYS[1], 'status', 'claim', 'attempts')
if known.err or not known[1] or known[2] ~= ARGV[2] then return 0 end
if known[1] ~= 'running' then return known[1] == ARGV[3] and 1 or 0 end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
if ARGV[3] ~= 'queued' then
  put_end(KEYS[1], KEYS[2], KEYS[3], KEYS[4], ARGV[1], ARGV[3], ARGV[4], now, tonumber(ARGV[5]), tonumber(ARGV[6]), ARGV[7])
  return 1
end
-- An attempt that was given back is none: only those count whose process died.
redis.call('HSET', KEYS[1], 'status', 'queued', 'attempts', math.max(0, (tonumber(known[3] or '') or 1) - 1))
redis.call('HDEL', KEYS[1], 'until', 'lease')
redis.call('ZADD', KEYS[2], now + ARGV[8], ARGV[1])
redis.call('PEXPIRE', KEYS[2], redis.call('PTTL', KEYS[1]))
redis.call('ZREM', KEYS[3], ARGV[1])
redis.call('PUBLISH', ARGV[7], 'queued ' .. ARGV[1])
return 1
