#!lua
-- Keep results of a session's calls; the oldest ones go when there are too many.
-- KEYS: 1 the results of the session
-- ARGV: 1 TTL (ms), 2 most results, 3 most bytes, then documents
-- Returns how many are kept.
local function push()
  local length = 0
  for i = 4, #ARGV do
    length = redis.pcall('RPUSH', KEYS[1], ARGV[i])
    if type(length) == 'table' then return nil end
  end
  return length
end
local length = push()
if not length then
  redis.call('DEL', KEYS[1])
  length = push()
end
local kept, bytes, most = 0, 0, tonumber(ARGV[3])
for back = 1, math.min(length, tonumber(ARGV[2])) do
  bytes = bytes + #redis.call('LINDEX', KEYS[1], -back)
  if bytes > most then break end
  kept = back
end
if kept == 0 then
  redis.call('DEL', KEYS[1])
  return 0
end
redis.call('LTRIM', KEYS[1], -kept, -1)
redis.call('PEXPIRE', KEYS[1], ARGV[1])
return kept
