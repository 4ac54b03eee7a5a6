#!lua flags=allow-oom
-- include streams/_streams
-- Delete keys that are of another type than they should be, and empty streams whose ids are used up: nothing can be written to them.
-- Set groups back that stand beyond their stream's newest entry: nothing is delivered to them.
-- KEYS: the keys
-- ARGV: of each key, its type as TYPE names it
-- Returns pairs of a key's index and the type that it had, or "group" where a group was set back.
local function is_spent(stream)
  return redis.call('XLEN', stream) == 0 and is_used_up(newest(stream))
end

local function set_back(stream)
  for _, group in ipairs(redis.call('XINFO', 'GROUPS', stream)) do
    if field(group, 'name') == 'g' then
      local last = newest(stream)
      if not is_beyond(field(group, 'last-delivered-id'), last) then return false end
      -- Delivered entries are pending until they are removed, and came in order: the rest waits behind the newest of them.
      local pending = redis.call('XPENDING', stream, 'g')[3] or '0-0'
      redis.call('XGROUP', 'SETID', stream, 'g', is_beyond(pending, last) and last or pending)
      return true
    end
  end
  return false
end

local wrong = {}
for i, key in ipairs(KEYS) do
  local found = redis.call('TYPE', key).ok
  if found ~= 'none' and (found ~= ARGV[i] or (found == 'stream' and is_spent(key))) then
    redis.call('DEL', key)
    wrong[#wrong + 1] = i
    wrong[#wrong + 1] = found
  elseif found == 'stream' and set_back(key) then
    wrong[#wrong + 1] = i
    wrong[#wrong + 1] = 'group'
  end
end
return wrong
