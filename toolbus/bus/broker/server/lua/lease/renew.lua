#!lua flags=allow-oom
-- include take/_fence
-- Renew the leases of running entries: XCLAIM with JUSTID resets their idle time and leaves the count alone. FORCE has those pending again
-- that the group dropped (XGROUP DELCONSUMER); an entry that is deleted stays so.
-- KEYS: 1 request stream, 2 fence
-- ARGV: 1 consumer, 2 known generation, 3 known counter, then each id and the number of its attempt
-- Returns {generation, counter, {lost id, ...}}
local queue, fence, consumer = KEYS[1], KEYS[2], ARGV[1]
local generation, counter = fence_state(fence, consumer)
local owned, lost = {}, {}
local unmoved = is_unmoved(generation, counter, ARGV[2], ARGV[3])
for i = 4, #ARGV, 2 do
  -- XCLAIM would steal an entry back from its new owner, so what has moved is left alone.
  if unmoved or still_owned(queue, consumer, ARGV[i], ARGV[i + 1], generation == ARGV[2]) then
    owned[#owned + 1] = ARGV[i]
  else
    lost[#lost + 1] = ARGV[i]
  end
end
if #owned > 0 then
  owned[#owned + 1] = 'FORCE'
  owned[#owned + 1] = 'JUSTID'
  redis.call('XCLAIM', queue, 'g', consumer, 0, unpack(owned))
end
return {generation, counter, lost}
