-- include finish/_append
-- include registry/_registry
-- Change several documents at once, if each is what the caller last saw. None of them may be a name that services can hold.
-- KEYS (after the common six): the tables in which the documents stand
-- ARGV (after the common four): 5… of each document: the position of its table among those, its key, what it is expected to be or "" for
--       none, what it becomes or "" to delete it
-- Returns {"ok", how many changed} or {"changed", key of the first that is another}
local differing = {}
for i = 5, #ARGV, 4 do
  local current = redis.call('HGET', KEYS[6 + ARGV[i]], ARGV[i + 1]) or ''
  -- One that is as wanted was written by this very change, whose answer was lost.
  if current ~= ARGV[i + 3] then
    if current ~= ARGV[i + 2] then return {'changed', ARGV[i + 1]} end
    differing[#differing + 1] = i
  end
end
for _, i in ipairs(differing) do
  local documents = KEYS[6 + ARGV[i]]
  if ARGV[i + 3] == '' then
    redis.call('HDEL', documents, ARGV[i + 1])
  else
    redis.call('HSET', documents, ARGV[i + 1], ARGV[i + 3])
  end
  record('item', ARGV[i + 1], ARGV[i + 3])
end
return {'ok', #differing}
