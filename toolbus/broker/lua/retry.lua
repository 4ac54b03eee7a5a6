#!lua flags=allow-oom
-- include _fence
-- Count a further attempt of an entry that this consumer holds, before its handler runs again.
-- KEYS: 1 request stream, 2 fence
-- ARGV: 1 consumer, 2 known generation, 3 known counter, 4 id
-- Returns the delivery count, or 0 when the entry is no longer ours.
local queue, consumer, id = KEYS[1], ARGV[1], ARGV[4]
local generation, counter = fence_state(KEYS[2], consumer)
if not (generation == ARGV[2] and counter == ARGV[3]) and not still_owned(queue, consumer, id, generation == ARGV[2]) then
  return 0
end
-- XCLAIM without JUSTID counts, so that a worker that dies later hands on the right number.
redis.call('XCLAIM', queue, 'g', consumer, 0, id)
local pending = redis.call('XPENDING', queue, 'g', id, id, 1, consumer)
return #pending > 0 and pending[1][4] or 0
