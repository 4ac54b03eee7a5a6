-- include lease/_lease
-- include publish/_line
-- Say which calls of their sessions came before some entries and have not ended; or which of a session other workers run that live, although
-- one of them may leave.
-- KEYS: 1 request stream, 2 the queue's order of sessions, and to ask about other workers 3 fence, 4 live instances
-- ARGV: of each entry its session, its id ("" for any), and the entry before it as the request says; then, to ask about other workers,
--       consumer and service
-- Returns for each the ids of such entries, with spaces between them; "" when there is none.
local stream = KEYS[1]
local asked = KEYS[3] and #ARGV - 2 or #ARGV
local me, service = ARGV[asked + 1], ARGV[asked + 2]
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local answers = {}

local function numbers(id)
  local milliseconds, number = id:match('^(%d+)%-(%d+)$')
  return tonumber(milliseconds), tonumber(number)
end

local function is_before(id, other)
  local a, b = numbers(id)
  local c, d = numbers(other)
  return a and c and (a < c or (a == c and b < d))
end

local function is_there(id)
  local found = redis.pcall('XRANGE', stream, id, id)
  return not found.err and #found > 0
end

local function is_run_elsewhere(id)
  local pending = redis.pcall('XPENDING', stream, 'g', id, id, 1)
  local holder = not pending.err and #pending > 0 and pending[1][2]
  return holder and holder ~= me and holder:sub(1, 1) ~= '~' and (read_lease(KEYS[4], KEYS[3], service, holder, now) or 0) >= now
end

for i = 1, asked, 3 do
  local line = read_lines(KEYS[2], {ARGV[i]})[ARGV[i]]
  local before, seen = {}, {}
  for id in (ARGV[i + 2] .. ' ' .. line):gmatch('%d+%-%d+') do
    if not seen[id] and (ARGV[i + 1] == '' or is_before(id, ARGV[i + 1])) then
      seen[id] = true
      if KEYS[3] and is_run_elsewhere(id) or not KEYS[3] and is_there(id) then before[#before + 1] = id end
    end
  end
  answers[#answers + 1] = table.concat(before, ' ')
end
return answers
