-- Keep a conversation among those that are listed; a key of another type is made anew.
local function list_conversation(key, digest, now, ttl)
  local added = redis.pcall('ZADD', key, now + ttl, digest)
  if type(added) == 'table' and added.err then
    if not added.err:find('WRONGTYPE', 1, true) then error(added) end
    redis.call('DEL', key)
    redis.call('ZADD', key, now + ttl, digest)
  end
  if redis.call('PTTL', key) < tonumber(ttl) then redis.call('PEXPIRE', key, ttl) end
end
