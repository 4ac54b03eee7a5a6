#!lua flags=allow-oom
-- include streams/_streams
-- Let waiting entries run that the group passed over (XGROUP SETID), or dropped with their consumer (XGROUP DELCONSUMER): they wait
-- under "~back", like those that were handed back. Looks at one stretch of the stream.
-- KEYS: 1 request stream
-- ARGV: 1 id behind which to look, "" for the beginning, 2 lease (ms), 3 wake channel, 4 service
-- Returns {how many entries it found, id behind which to look next}
local STRETCH = 16
local queue = KEYS[1]
local groups, position, pending = redis.pcall('XINFO', 'GROUPS', queue), nil, 0
for _, group in ipairs(groups.err and {} or groups) do
  if field(group, 'name') == 'g' then position, pending = field(group, 'last-delivered-id'), field(group, 'pending') end
end
if not position or redis.call('XLEN', queue) <= pending then return {0, ''} end

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local stretch = redis.call('XRANGE', queue, ARGV[1] == '' and '-' or '(' .. ARGV[1], position, 'COUNT', STRETCH)
local ids = {}
for _, entry in ipairs(stretch) do
  -- Who runs one that was dropped claims it back when it renews.
  if tonumber(entry[1]:match('^%d+')) < now - 2 * ARGV[2] and #redis.call('XPENDING', queue, 'g', entry[1], entry[1], 1) == 0 then
    ids[#ids + 1] = entry[1]
  end
end
local found = #ids
if found > 0 then
  for _, word in ipairs({'RETRYCOUNT', 1, 'FORCE', 'JUSTID'}) do ids[#ids + 1] = word end
  redis.call('XCLAIM', queue, 'g', '~back', 0, unpack(ids))
  redis.call('PUBLISH', ARGV[3], 'back ' .. ARGV[4])
end
return {found, #stretch == STRETCH and stretch[STRETCH][1] or ''}
