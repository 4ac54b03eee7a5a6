#!lua flags=allow-oom
-- include take/_fence
-- Give entries back: they wait under the consumer "~back", which takers empty first. One whose handler had begun goes on under the next
-- number, so that no two of its attempts have the same.
-- KEYS: 1 request stream, 2 fence
-- ARGV: 1 consumer, 2 known generation, 3 known counter, 4 wake channel, 5 service,
--       then of each entry: id, the number of its attempt, the number of its next one
-- Returns how many were given back.
local queue, fence, consumer = KEYS[1], KEYS[2], ARGV[1]
local generation, counter = fence_state(fence, consumer)
local unmoved = is_unmoved(generation, counter, ARGV[2], ARGV[3])
local given = 0
for i = 6, #ARGV, 3 do
  if unmoved or still_owned(queue, consumer, ARGV[i], ARGV[i + 1], generation == ARGV[2]) then
    -- An absolute number, so that a script that is sent again counts once.
    redis.call('XCLAIM', queue, 'g', '~back', 0, ARGV[i], 'RETRYCOUNT', ARGV[i + 2], 'JUSTID')
    given = given + 1
  end
end
if given == 0 then return 0 end
bump_fence(fence, consumer)
redis.call('PUBLISH', ARGV[4], 'back ' .. ARGV[5])
return given
