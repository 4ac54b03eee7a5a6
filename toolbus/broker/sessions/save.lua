-- Keep a snapshot of a session's state after a call, if the session is still this consumer's.
-- KEYS: 1 owner of the session, 2 its snapshot
-- ARGV: 1 consumer, 2 token of the state, 3 the call, 4 snapshot, or "" to forget the last one, 5 TTL (ms)
-- Returns 1, or 0 when another worker has the session.
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
if ARGV[4] == '' then
  redis.call('DEL', KEYS[2])
  return 1
end
-- While a cluster moves the slot, a key that was deleted can't be made anew here: it is written over, unless it is of another type.
local written = redis.pcall('HSET', KEYS[2], 't', ARGV[2], 'c', ARGV[3], 'd', ARGV[4])
if type(written) == 'table' then
  redis.call('DEL', KEYS[2])
  redis.call('HSET', KEYS[2], 't', ARGV[2], 'c', ARGV[3], 'd', ARGV[4])
end
redis.call('PEXPIRE', KEYS[2], ARGV[5])
return 1
