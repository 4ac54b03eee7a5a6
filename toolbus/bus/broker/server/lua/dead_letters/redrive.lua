-- Publish a dead letter's request again and remove the letter, both or neither.
-- KEYS: 1 dead letters, 2 request stream
-- ARGV: 1 letter, 2 bound of the queue, 3 timeout (ms), 4 the new request
-- Returns {"queued", entry}, {"gone"} (no such letter any more), {"absent"} (no worker serves the queue) or {"full", depth}
if #redis.call('XRANGE', KEYS[1], ARGV[1], ARGV[1]) == 0 then return {'gone'} end
local depth = redis.call('XLEN', KEYS[2])
if depth >= tonumber(ARGV[2]) then return {'full', depth} end
local time = redis.call('TIME')
local deadline = time[1] * 1000 + math.floor(time[2] / 1000) + ARGV[3]
local entry = redis.call('XADD', KEYS[2], 'NOMKSTREAM', '*', 'r', ARGV[4], 'd', string.format('%.0f', deadline))
if not entry then return {'absent'} end
redis.call('XDEL', KEYS[1], ARGV[1])
return {'queued', entry}
