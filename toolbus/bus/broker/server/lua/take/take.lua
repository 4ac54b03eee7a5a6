#!lua flags=allow-oom
-- Deliver requests of several streams to one consumer, by turns, at most so many in all: XREADGROUP's COUNT is for each stream.
-- KEYS: request streams; the first has the first turn
-- ARGV: 1 consumer, 2 most requests
-- Returns {number of the stream that had the last turn, what was found in the first stream, in the second, ...}: each a list of
-- entries as XREADGROUP gives them, or an error's text.
local room, last = tonumber(ARGV[2]), #KEYS
local found, open = {}, {}
for i = 1, #KEYS do found[i], open[i] = {}, i end

-- Requests that were delivered must reach the worker, so an error concerns its stream alone.
local function read(i, count)
  local reply = redis.pcall('XREADGROUP', 'GROUP', 'g', ARGV[1], 'COUNT', count, 'STREAMS', KEYS[i], '>')
  if not reply then return 0 end
  if reply.err then
    if #found[i] == 0 then found[i] = reply.err end
    return 0
  end
  local entries = reply[1][2]
  for _, entry in ipairs(entries) do table.insert(found[i], entry) end
  room, last = room - #entries, i
  return #entries
end

while room > 0 and #open > 0 do
  local share, more = math.max(1, math.floor(room / #open)), {}
  for _, i in ipairs(open) do
    local count = math.min(share, room)
    if count < 1 then break end
    if read(i, count) == count then more[#more + 1] = i end
  end
  open = more
end
table.insert(found, 1, last)
return found
