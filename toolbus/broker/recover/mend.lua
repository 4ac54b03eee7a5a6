#!lua flags=allow-oom
-- Delete keys that are of another type than they should be, and empty streams whose ids are used up: nothing can be written to them.
-- Set groups back that stand beyond their stream's newest entry: nothing is delivered to them.
-- KEYS: the keys
-- ARGV: of each key, its type as TYPE names it
-- Returns pairs of a key's index and the type that it had, or "group" where a group was set back.
local function field(about, name)
  for i = 1, #about, 2 do
    if about[i] == name then return about[i + 1] end
  end
end

local function newest(stream)
  return field(redis.call('XINFO', 'STREAM', stream), 'last-generated-id')
end

local function is_used_up(stream)
  -- Milliseconds since 1970 have 13 digits for some centuries.
  return redis.call('XLEN', stream) == 0 and #newest(stream):match('^%d*') > 15
end

-- Ids are pairs of 64 bits each, which Lua's numbers can't tell apart.
local function is_beyond(id, other)
  local ms, number = id:match('^(%d+)-(%d+)$')
  local other_ms, other_number = other:match('^(%d+)-(%d+)$')
  if ms == other_ms then ms, other_ms = number, other_number end
  if #ms ~= #other_ms then return #ms > #other_ms end
  return ms > other_ms
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
  if found ~= 'none' and (found ~= ARGV[i] or (found == 'stream' and is_used_up(key))) then
    redis.call('DEL', key)
    wrong[#wrong + 1] = i
    wrong[#wrong + 1] = found
  elseif found == 'stream' and set_back(key) then
    wrong[#wrong + 1] = i
    wrong[#wrong + 1] = 'group'
  end
end
return wrong
