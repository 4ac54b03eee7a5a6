#!lua flags=allow-oom
-- Let any worker take what waits for a consumer that leaves.
-- KEYS: 1 request stream
-- ARGV: 1 consumer, 2 wake channel, 3 service, 4 most entries
-- Returns how many were passed on.
local queue = KEYS[1]
local waiting = redis.pcall('XPENDING', queue, 'g', '-', '+', ARGV[4], '~to:' .. ARGV[1])
if waiting.err or #waiting == 0 then return 0 end
local ids = {}
for i, entry in ipairs(waiting) do ids[i] = entry[1] end
ids[#ids + 1] = 'JUSTID'
redis.call('XCLAIM', queue, 'g', '~back', 0, unpack(ids))
redis.call('PUBLISH', ARGV[2], 'back ' .. ARGV[3])
return #waiting
