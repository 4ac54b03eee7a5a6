-- Whether a call may change what is kept of its session: its entry is still this consumer's. Then the later calls of the session wait for
-- its end, also at a worker that has the session by now. A call that has no place in the order of its session needs the session itself.
-- KEYS: 1 request stream, 2 fence, 3 owner of the session
-- ARGV: 1 consumer, 2 known generation, 3 known counter, 4 id, 5 number of the attempt, 6 "1" when it needs the session itself
local function may_keep()
  if not owns(KEYS[1], KEYS[2], ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]) then return false end
  return ARGV[6] ~= '1' or redis.pcall('GET', KEYS[3]) == ARGV[1]
end
