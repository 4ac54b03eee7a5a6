#!lua flags=allow-oom
-- Make an agent's reply stream, if it is missing, together with its TTL: a connection that is lost between the two would leave it
-- behind for good.
-- KEYS: 1 reply stream
-- ARGV: 1 TTL (ms)
-- Returns 1 if it was missing, else 0
local missing = redis.call('EXISTS', KEYS[1]) == 0
if missing then redis.call('XADD', KEYS[1], '*', 'o', '1') end
redis.call('PEXPIRE', KEYS[1], ARGV[1])
return missing and 1 or 0
