#!lua flags=allow-oom
-- Count one use against a rate: as many at once as the limit, refilled evenly over the period.
-- KEYS: 1 the rate
-- ARGV: 1 limit, 2 period (ms)
-- Returns 0 when it was counted, else the milliseconds until there is room.
local limit, period = tonumber(ARGV[1]), tonumber(ARGV[2])
local time = redis.call('TIME')
local now = time[1] * 1000 + time[2] / 1000
local interval = period / limit
-- When everything used so far will have been refilled.
local known = redis.pcall('GET', KEYS[1])
known = type(known) == 'string' and tonumber(known) or 0
-- No use makes it later than this; a value that does was written under another clock, or by another client.
if not (known <= now + period) then known = now + period end
local full = math.max(known, now) + interval
local wait = full - period - now
-- Time is rounded to microseconds.
if wait > 0.1 then return math.ceil(wait) end
redis.call('SET', KEYS[1], string.format('%.3f', full), 'PX', math.ceil(full - now))
return 0
