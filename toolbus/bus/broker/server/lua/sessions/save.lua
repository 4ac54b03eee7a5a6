-- include take/_fence
-- Keep a snapshot of a session's state after a call; or forget it, because it is out of date. That there was one stays, so that a loss of the
-- state is told.
-- KEYS: as for may_keep in take/_fence, then 4 the snapshot
-- ARGV: as for may_keep in take/_fence, then 7 token of the state, 8 the call, 9 snapshot (all empty to forget it), 10 TTL (ms)
-- Returns 1, or 0 when the call or its session is another worker's.
if not may_keep() then return 0 end
-- Where memory is full, a script that has written may go on: what is out of date is forgotten there, too.
if ARGV[7] == '' then redis.call('PEXPIRE', KEYS[4], ARGV[10]) end
-- While a cluster moves the slot, a key that was deleted can't be made anew here: it is written over, unless it is of another type.
local written = redis.pcall('HSET', KEYS[4], 't', ARGV[7], 'c', ARGV[8], 'd', ARGV[9])
if type(written) == 'table' then
  -- After the key was deleted a full server would take what it has refused.
  if not written.err:find('WRONGTYPE', 1, true) then return redis.error_reply(written.err) end
  redis.call('DEL', KEYS[4])
  redis.call('HSET', KEYS[4], 't', ARGV[7], 'c', ARGV[8], 'd', ARGV[9])
end
redis.call('PEXPIRE', KEYS[4], ARGV[10])
return 1
