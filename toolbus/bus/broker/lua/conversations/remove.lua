#!lua flags=allow-oom
-- Delete a conversation, whatever stands in its key.
-- KEYS: 1 the conversation, 2 the conversations of the namespace
-- ARGV: 1 digest of its name, 2 1 to delete it although a process continues it
-- Returns {"removed"}, {"none"}, or {"held", milliseconds until the lease ends}.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local known = redis.pcall('HMGET', KEYS[1], 'until', 'lease')
if not known.err and ARGV[2] ~= '1' then
  local ends, length = tonumber(known[1] or ''), tonumber(known[2] or '')
  if ends and length and now < ends and ends <= now + length then return {'held', math.ceil(ends - now)} end
end
local removed = redis.call('DEL', KEYS[1])
redis.pcall('ZREM', KEYS[2], ARGV[1])
return {removed == 1 and 'removed' or 'none'}
