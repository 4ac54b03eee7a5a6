#!lua flags=allow-oom
-- include streams/_streams
-- Answer a confirmation request: exactly one answer wins, and its asker is told in the same step.
-- KEYS: 1 the request, 2 the open requests
-- ARGV: 1 id, 2 answer, 3 token of this answer, 4 key prefix, 5 milliseconds for which the answer can be read, 6 channel that tells of
--       requests
-- Returns {"done"}, {"answered", the answer that won} or {"gone"}.
local known = redis.call('HMGET', KEYS[1], 'answer', 'token', 'to')
-- The same answer again, after a lost connection.
if known[2] == ARGV[3] then return {'done'} end
if known[1] then return {'answered', known[1]} end
if not known[3] then return {'gone'} end
local kind, to = known[3]:match('^(%a+) (.+)$')
-- An asker that can't be told now, because its reply stream is being made anew, finds the answer when it asks again.
if kind == 'agent' then
  local told = reply(ARGV[4] .. 'rsp:' .. to, ARGV[1], 'c')
  if told == 'moving' then return try_again() end
elseif kind == 'worker' then
  redis.call('PUBLISH', ARGV[4] .. 'wake:' .. to, 'confirm ' .. ARGV[1])
end
-- The request is never gone in between: where a cluster moves the slot, it could not be made again.
redis.call('HSET', KEYS[1], 'answer', ARGV[2], 'token', ARGV[3])
redis.call('HDEL', KEYS[1], 'doc', 'to', 'asked', 'expires')
redis.call('PEXPIRE', KEYS[1], ARGV[5])
redis.call('ZREM', KEYS[2], ARGV[1])
redis.call('PUBLISH', ARGV[6], 'closed ' .. ARGV[1])
return {'done'}
