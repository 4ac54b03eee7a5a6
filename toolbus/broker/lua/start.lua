#!lua flags=allow-oom
-- include _fence
-- Mark that a `once` handler begins, if the entry is still ours and no earlier attempt began.
-- KEYS: 1 request stream, 2 fence, 3 started mark
-- ARGV: 1 consumer, 2 known generation, 3 known counter, 4 id, 5 run token, 6 TTL of the mark (ms)
-- Returns "started", "began" (an earlier attempt did) or "lost".
local generation, counter = fence_state(KEYS[2], ARGV[1])
if not (generation == ARGV[2] and counter == ARGV[3]) and not still_owned(KEYS[1], ARGV[1], ARGV[4], generation == ARGV[2]) then
  return 'lost'
end
if redis.call('SET', KEYS[3], ARGV[5], 'NX', 'PX', ARGV[6]) then return 'started' end
-- The same run asks again when its first answer was lost with a connection.
return redis.call('GET', KEYS[3]) == ARGV[5] and 'started' or 'began'
