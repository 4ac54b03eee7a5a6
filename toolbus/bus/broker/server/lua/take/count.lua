#!lua flags=allow-oom
-- include take/_fence
-- Count a further attempt of an entry that this consumer has, before its handler runs again.
-- KEYS: 1 request stream, 2 fence
-- ARGV: 1 consumer, 2 known generation, 3 known counter, 4 id, 5 number of the attempt
-- Returns 1, or 0 when the entry is no longer ours.
local queue, consumer, id = KEYS[1], ARGV[1], ARGV[4]
local function ours(attempt) return owns(queue, KEYS[2], consumer, ARGV[2], ARGV[3], id, attempt) end
-- In its last attempt, or in this one when the script is sent again.
if not ours(ARGV[5] - 1) and not ours(ARGV[5]) then return 0 end
-- An absolute number, so that a script that is sent again counts once.
redis.call('XCLAIM', queue, 'g', consumer, 0, id, 'RETRYCOUNT', ARGV[5], 'JUSTID')
return 1
