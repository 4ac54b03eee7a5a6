-- Renew the lease of a task, and keep what its process tells of it. Running it again changes nothing.
-- KEYS: 1 the task, 2 running tasks
-- ARGV: 1 id, 2 token of the claim, 3 lease (ms), 4 TTL (ms), 5 most lines of the log, 6 number of the first of these lines,
--       7 number of pairs, then field and value of each pair, then lines
-- Returns "kept", "cancel" (kept, and it is to end) or "lost".
local known = redis.pcall('HMGET', KEYS[1], 'status', 'claim', 'lines', 'cancel')
if known.err or known[1] ~= 'running' or known[2] ~= ARGV[2] then return redis.status_reply('lost') end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local ends = string.format('%.0f', now + ARGV[3])
redis.call('HSET', KEYS[1], 'until', ends, 'lease', ARGV[3])
local at = 8 + 2 * ARGV[7]
for i = 8, at - 1, 2 do redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 1]) end
local lines, most = tonumber(known[3] or '') or 0, tonumber(ARGV[5])
for i = at, #ARGV do
  local number = ARGV[6] + i - at
  if number >= lines then
    redis.call('HSET', KEYS[1], 'l:' .. string.format('%.0f', number), ARGV[i])
    redis.call('HDEL', KEYS[1], 'l:' .. string.format('%.0f', number - most))
    lines = number + 1
  end
end
redis.call('HSET', KEYS[1], 'lines', string.format('%.0f', lines))
redis.call('PEXPIRE', KEYS[1], ARGV[4])
redis.call('ZADD', KEYS[2], ends, ARGV[1])
redis.call('PEXPIRE', KEYS[2], ARGV[4])
return redis.status_reply(known[4] == '1' and 'cancel' or 'kept')
