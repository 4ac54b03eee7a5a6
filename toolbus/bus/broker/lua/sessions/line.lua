-- include publish/_line
-- Say which calls of their sessions came before some entries and have not ended.
-- KEYS: 1 request stream, 2 the queue's order of sessions
-- ARGV: of each entry its session, its id, and the entry before it as the request says
-- Returns for each the ids of such entries, with spaces between them; "" when there is none.
local stream = KEYS[1]
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

for i = 1, #ARGV, 3 do
  local line = read_lines(KEYS[2], {ARGV[i]})[ARGV[i]]
  local before, seen = {}, {}
  for id in (ARGV[i + 2] .. ' ' .. line):gmatch('%d+%-%d+') do
    if is_before(id, ARGV[i + 1]) and not seen[id] then
      seen[id] = true
      local found = redis.pcall('XRANGE', stream, id, id)
      if not found.err and #found > 0 then before[#before + 1] = id end
    end
  end
  answers[#answers + 1] = table.concat(before, ' ')
end
return answers
