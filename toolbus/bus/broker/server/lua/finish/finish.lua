#!lua flags=allow-oom
-- include take/_fence
-- include streams/_streams
-- Finish a batch, all of it or nothing: the terminal frames, XACK and XDEL of entries that are certainly this consumer's.
-- KEYS: 1 request stream, 2 fence
-- ARGV: 1 consumer, 2 known generation, 3 known counter, 4 number of ids, then the ids, then pairs of reply stream and frames (a JSON list)
-- Returns {generation, counter, {}, {reply stream that is gone, ...}, requests that are left}, or {generation, counter} when something was moved and
-- nothing was done: then finish_each.lua looks at each id.
local queue, consumer = KEYS[1], ARGV[1]
local generation, counter = fence_state(KEYS[2], consumer)
if not is_unmoved(generation, counter, ARGV[2], ARGV[3]) then return {generation, counter} end
local gone = {}
local first = 5 + ARGV[4]
for i = first, #ARGV, 2 do
  local id, anew = reply(ARGV[i], ARGV[i + 1])
  if id == 'moving' then return try_again() end
  if anew or not id then gone[#gone + 1] = ARGV[i] end
end
redis.call('XACK', queue, 'g', unpack(ARGV, 5, first - 1))
redis.call('XDEL', queue, unpack(ARGV, 5, first - 1))
return {generation, counter, {}, gone, redis.call('XLEN', queue)}
