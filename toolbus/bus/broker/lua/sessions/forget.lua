#!lua flags=allow-oom
-- include take/_fence
-- include sessions/_keeper
-- Forget the snapshot of a session, because it is out of date. That there was one stays, so that a loss of the state is told.
-- KEYS: as in sessions/_keeper, then 4 the snapshot
-- ARGV: as in sessions/_keeper, then 7 TTL (ms)
-- Returns 1, or 0 when the call or its session is another worker's.
if not may_keep() then return 0 end
if type(redis.pcall('HSET', KEYS[4], 't', '', 'c', '', 'd', '')) == 'table' then
  redis.call('DEL', KEYS[4])
  redis.call('HSET', KEYS[4], 't', '', 'c', '', 'd', '')
end
redis.call('PEXPIRE', KEYS[4], ARGV[7])
return 1
