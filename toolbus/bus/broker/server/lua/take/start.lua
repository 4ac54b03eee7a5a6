#!lua flags=allow-oom
-- include take/_fence
-- Mark that `once` handlers begin, each if its entry is still ours and no earlier attempt of it began. It may be run again.
-- KEYS: 1 request stream, 2 fence, 3.. the started mark of each entry
-- ARGV: 1 consumer, 2 known generation, 3 known counter, then of each entry: id, number of the attempt, run token, TTL of the mark (ms)
-- Returns for each "started", "began" (an earlier attempt did) or "lost".
local generation, counter = fence_state(KEYS[2], ARGV[1])
local unmoved = is_unmoved(generation, counter, ARGV[2], ARGV[3])
local found = {}
for i = 3, #KEYS do
  local at = 4 * i - 8
  local id, attempt, run, ttl = ARGV[at], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3]
  if not unmoved and not still_owned(KEYS[1], ARGV[1], id, attempt, generation == ARGV[2]) then
    found[#found + 1] = 'lost'
  elseif redis.call('SET', KEYS[i], run, 'NX', 'PX', ttl) then
    found[#found + 1] = 'started'
  else
    -- The same run asks again when its first answer was lost with a connection. A mark of another type is no run's.
    found[#found + 1] = redis.pcall('GET', KEYS[i]) == run and 'started' or 'began'
  end
end
return found
