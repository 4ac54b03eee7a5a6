#!lua flags=allow-oom
-- include _fence
-- Count a further attempt of entries that this consumer has, before their handlers run again.
-- KEYS: 1 request stream, 2 fence
-- ARGV: 1 consumer, 2 known generation, 3 known counter, then pairs of id and attempt
-- Returns the index of each pair whose entry is no longer ours.
local queue, consumer = KEYS[1], ARGV[1]
local generation, counter = fence_state(KEYS[2], consumer)
local unmoved = generation == ARGV[2] and counter == ARGV[3]
local lost = {}
for i = 4, #ARGV, 2 do
  if unmoved or still_owned(queue, consumer, ARGV[i], generation == ARGV[2]) then
    -- An absolute number, so that a repeated script counts once.
    redis.call('XCLAIM', queue, 'g', consumer, 0, ARGV[i], 'RETRYCOUNT', ARGV[i + 1], 'JUSTID')
  else
    lost[#lost + 1] = (i - 2) / 2
  end
end
return lost
