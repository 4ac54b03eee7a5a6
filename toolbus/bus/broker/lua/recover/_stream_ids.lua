-- The ids of streams.
local function field(about, name)
  for i = 1, #about, 2 do
    if about[i] == name then return about[i + 1] end
  end
end

-- The highest id that a stream has had; its next entry comes behind it.
local function newest(stream)
  return field(redis.call('XINFO', 'STREAM', stream), 'last-generated-id')
end

-- Milliseconds since 1970 have 13 digits for some centuries.
local function is_used_up(id)
  return #id:match('^%d*') > 15
end

-- Ids are pairs of 64 bits each, which Lua's numbers can't tell apart.
local function is_beyond(id, other)
  local ms, number = id:match('^(%d+)-(%d+)$')
  local other_ms, other_number = other:match('^(%d+)-(%d+)$')
  if ms == other_ms then ms, other_ms = number, other_number end
  if #ms ~= #other_ms then return #ms > #other_ms end
  return ms > other_ms
end
