#!lua flags=allow-oom
-- include take/_fence
-- Give entries back without counting a delivery: they wait under the consumer "~back", which takers empty first.
-- KEYS: 1 request stream, 2 fence
-- ARGV: 1 consumer, 2 known generation, 3 known counter, 4 wake channel, 5 service, then each id and the number of its attempt
-- Returns how many were given back.
local queue, fence, consumer = KEYS[1], KEYS[2], ARGV[1]
local generation, counter = fence_state(fence, consumer)
local unmoved = is_unmoved(generation, counter, ARGV[2], ARGV[3])
local ids = {}
for i = 6, #ARGV, 2 do
  if unmoved or still_owned(queue, consumer, ARGV[i], ARGV[i + 1], generation == ARGV[2]) then ids[#ids + 1] = ARGV[i] end
end
if #ids == 0 then return 0 end
redis.call('XCLAIM', queue, 'g', '~back', 0, unpack(ids), 'JUSTID')
bump_fence(fence, consumer)
redis.call('PUBLISH', ARGV[4], 'back ' .. ARGV[5])
return #ids
