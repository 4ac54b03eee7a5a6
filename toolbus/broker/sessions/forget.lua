#!lua flags=allow-oom
-- include take/_fence
-- include sessions/_keeper
-- Forget the snapshot of a session, because it is out of date.
-- KEYS: as in sessions/_keeper, then 4 the snapshot
-- ARGV: as in sessions/_keeper
-- Returns 1, or 0 when the call or its session is another worker's.
if not may_keep() then return 0 end
redis.call('DEL', KEYS[4])
return 1
