-- Open a confirmation request, keep it open, hear its answer, or take it back. The asker runs it again and again while it waits: an asker
-- that has died lets go of its request, and a server that forgot the request is told anew.
-- KEYS: 1 the request, 2 the open requests
-- ARGV: 1 id, 2 document, 3 who is told of the answer: "agent <agent>" or "worker <queue>", 4 milliseconds until it can't be answered any
--       more, 0 to take it back, 5 milliseconds for which the request stays open without this script, 6 bound, 7 channel that tells of requests,
--       8 the whole arguments, when the document has a part of them; else empty
-- Returns {"open"}, {"answered", answer}, {"full", number of open requests} or {"closed"} (it was taken back).
local known = redis.call('HMGET', KEYS[1], 'answer', 'doc')
if known[1] then return {'answered', known[1]} end
if tonumber(ARGV[4]) == 0 then
  redis.call('ZREM', KEYS[2], ARGV[1])
  if redis.call('DEL', KEYS[1]) == 1 then redis.call('PUBLISH', ARGV[7], 'closed ' .. ARGV[1]) end
  return {'closed'}
end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local held = math.min(tonumber(ARGV[4]), tonumber(ARGV[5]))
if not known[2] then
  local open = redis.call('ZCOUNT', KEYS[2], '(' .. string.format('%.0f', now), '+inf')
  if open >= tonumber(ARGV[6]) then return {'full', open} end
  local expires = string.format('%.0f', now + ARGV[4])
  redis.call('HSET', KEYS[1], 'doc', ARGV[2], 'to', ARGV[3], 'asked', string.format('%.0f', now), 'expires', expires)
  if ARGV[8] and ARGV[8] ~= '' then redis.call('HSET', KEYS[1], 'whole', ARGV[8]) end
  redis.call('PUBLISH', ARGV[7], 'asked ' .. ARGV[1])
end
redis.call('PEXPIRE', KEYS[1], held)
-- In this order, so that the set is never empty and gone in between.
redis.call('ZADD', KEYS[2], now + held, ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', now)
if redis.call('PTTL', KEYS[2]) < held then redis.call('PEXPIRE', KEYS[2], held) end
return {'open'}
