#!lua flags=allow-oom
-- Take back a confirmation request that has no answer.
-- KEYS: 1 the request, 2 the open requests
-- ARGV: 1 id, 2 channel that tells of requests
-- Returns the answer when there is one after all, else nothing.
local answer = redis.call('HGET', KEYS[1], 'answer')
if answer then return answer end
redis.call('ZREM', KEYS[2], ARGV[1])
if redis.call('DEL', KEYS[1]) == 1 then redis.call('PUBLISH', ARGV[2], 'closed ' .. ARGV[1]) end
return false
