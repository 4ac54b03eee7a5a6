-- While a cluster moves the slot, a key that is not here may be at the next node, and a command that needs it fails. Keys in KEYS are all
-- here when a script begins. One whose name only the script learns is read by pcall before anything changes; so answers this.
local function is_elsewhere(answer)
  return type(answer) == 'table' and answer.err ~= nil and answer.err:find('non local', 1, true) ~= nil
end

local function try_again() return redis.error_reply('TRYAGAIN the slot is being moved') end

-- Append an entry to a reply stream: its id, and true when the stream was missing; nil when there is none; and "moving" while a cluster
-- moves the slot, when the whole script is to be run again (callers drop frames that they already have). Its field is "f" for frames.
-- A stream may be missing because the server's clock was set forward. So its frames make it anew for a moment, in which a reader that
-- lives takes it over.
local function reply(stream, payload, field)
  local id = redis.pcall('XADD', stream, 'NOMKSTREAM', '*', field or 'f', payload)
  if type(id) == 'table' then return is_elsewhere(id) and 'moving' or nil end
  if id or field then return id or nil end
  redis.call('XADD', stream, '*', 'o', 'lost')
  id = redis.call('XADD', stream, '*', 'f', payload)
  redis.call('PEXPIRE', stream, 5000)
  return id, true
end

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

-- Say whether an idempotency key is free again: its record stands for this call, and no other run marked that `once` work began.
local function is_free(record, call, mark, run)
  local began = redis.call('GET', mark)
  return (not began or began == run) and redis.call('HGET', record, 'id') == call
end

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
