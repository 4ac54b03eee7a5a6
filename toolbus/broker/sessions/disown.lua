#!lua flags=allow-oom
-- Give sessions up that have ended: the next call of one starts it anew, anywhere.
-- KEYS: owners of sessions
-- ARGV: 1 consumer
-- Returns how many were this consumer's.
local given = 0
for _, key in ipairs(KEYS) do
  if redis.call('GET', key) == ARGV[1] then given = given + redis.call('DEL', key) end
end
return given
