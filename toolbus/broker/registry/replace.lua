-- include finish/_append
-- include registry/_registry
-- Change several documents at once, if each is what the caller last saw. None of them may be a name that services can hold.
-- ARGV (after the common four): 5… of each document: its key, what it is expected to be or "" for none, what it becomes or "" to delete it
-- Returns {"ok", how many changed} or {"changed", key of the first that is another}
local differing = {}
for i = 5, #ARGV, 3 do
  local current = redis.call('HGET', items, ARGV[i]) or ''
  -- One that is as wanted was written by this very change, whose answer was lost.
  if current ~= ARGV[i + 2] then
    if current ~= ARGV[i + 1] then return {'changed', ARGV[i]} end
    differing[#differing + 1] = i
  end
end
for _, i in ipairs(differing) do
  if ARGV[i + 2] == '' then
    redis.call('HDEL', items, ARGV[i])
  else
    redis.call('HSET', items, ARGV[i], ARGV[i + 2])
  end
  record('item', ARGV[i], ARGV[i + 2])
end
return {'ok', #differing}
