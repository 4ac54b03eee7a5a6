-- include lease/_lease
-- include publish/_line
-- Say which calls of a session other workers run that live, although one of them may leave.
-- KEYS: 1 request stream, 2 the queue's order of sessions, 3 fence, 4 live instances
-- ARGV: 1 consumer, 2 service, 3 session
-- Returns their ids.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local line = read_lines(KEYS[2], {ARGV[3]})[ARGV[3]]
local found = {}
for id in line:gmatch('%d+%-%d+') do
  local pending = redis.pcall('XPENDING', KEYS[1], 'g', id, id, 1)
  local holder = not pending.err and #pending > 0 and pending[1][2]
  if holder and holder ~= ARGV[1] and holder:sub(1, 1) ~= '~' and (read_lease(KEYS[4], KEYS[3], ARGV[2], holder, now) or 0) >= now then
    found[#found + 1] = id
  end
end
return found
