#!lua flags=allow-oom
-- include take/_fence
-- Mark that a `once` handler begins, if the entry is still ours and no earlier attempt began.
-- KEYS: 1 request stream, 2 fence, 3 started mark
-- ARGV: 1 consumer, 2 known generation, 3 known counter, 4 id, 5 number of the attempt, 6 run token, 7 TTL of the mark (ms)
-- Returns "started", "began" (an earlier attempt did) or "lost".
if not owns(KEYS[1], KEYS[2], ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]) then return 'lost' end
if redis.call('SET', KEYS[3], ARGV[6], 'NX', 'PX', ARGV[7]) then return 'started' end
-- The same run asks again when its first answer was lost with a connection.
return redis.call('GET', KEYS[3]) == ARGV[6] and 'started' or 'began'
