-- Append to a stream of which nothing but its newest entries matters. One that takes no more, since somebody has used up its ids or has put
-- something else in its place, begins anew.
local function append(stream, ...)
  local id = redis.pcall('XADD', stream, ...)
  if type(id) ~= 'table' or not id.err then return id end
  if not (id.err:find('exhausted', 1, true) or id.err:find('WRONGTYPE', 1, true)) then error(id) end
  redis.call('DEL', stream)
  -- While a cluster moves the slot it can't be made again, and the entry is lost with the others.
  return redis.pcall('XADD', stream, ...)
end
