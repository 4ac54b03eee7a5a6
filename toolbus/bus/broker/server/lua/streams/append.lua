#!lua
-- include streams/_streams
-- Append to what keeps its latest entries only: a stream (records of recent calls, answers of workers, lines of a program's output), or a list,
-- whose bytes are bounded, too (results of a session's calls).
-- KEYS: 1 the stream or the list
-- ARGV: 1 most entries that are kept, of a stream about, 2 for how long they are kept after the last one (ms), 3 number of words of each
--       entry, 0 for a list, then fields and values of each; or of a list 4 most bytes, then documents
-- Returns how many there are.
local key, most, ttl, words = KEYS[1], tonumber(ARGV[1]), ARGV[2], tonumber(ARGV[3])

local function push()
  local length = 0
  for i = 5, #ARGV do
    length = redis.pcall('RPUSH', key, ARGV[i])
    if type(length) == 'table' then return nil end
  end
  return length
end

-- Drop the oldest of a list, and return how many are kept.
local function trim(length)
  local kept, bytes = 0, 0
  for back = 1, math.min(length, most) do
    bytes = bytes + #redis.call('LINDEX', key, -back)
    if bytes > tonumber(ARGV[4]) then break end
    kept = back
  end
  if kept == 0 then redis.call('DEL', key) else redis.call('LTRIM', key, -kept, -1) end
  return kept
end

local kept
if words > 0 then
  for i = 4, #ARGV, words do append(key, 'MAXLEN', '~', most, '*', unpack(ARGV, i, i + words - 1)) end
  kept = redis.call('XLEN', key)
else
  local length = push()
  if not length then
    redis.call('DEL', key)
    length = push()
  end
  kept = trim(length)
end
redis.call('PEXPIRE', key, ttl)
return kept
