-- include take/_fence
-- include sessions/_keeper
-- Keep a snapshot of a session's state after a call.
-- KEYS: as in sessions/_keeper, then 4 the snapshot
-- ARGV: as in sessions/_keeper, then 7 token of the state, 8 the call, 9 snapshot, 10 TTL (ms)
-- Returns 1, or 0 when the call or its session is another worker's.
if not may_keep() then return 0 end
-- While a cluster moves the slot, a key that was deleted can't be made anew here: it is written over, unless it is of another type.
local written = redis.pcall('HSET', KEYS[4], 't', ARGV[7], 'c', ARGV[8], 'd', ARGV[9])
if type(written) == 'table' then
  redis.call('DEL', KEYS[4])
  redis.call('HSET', KEYS[4], 't', ARGV[7], 'c', ARGV[8], 'd', ARGV[9])
end
redis.call('PEXPIRE', KEYS[4], ARGV[10])
return 1
