-- A key that is of another type than it should be was written by a stranger; what belongs there is written anew.
local function of_kind(key, kind)
  local found = redis.call('TYPE', key).ok
  if found ~= 'none' and found ~= kind then redis.call('DEL', key) end
end
