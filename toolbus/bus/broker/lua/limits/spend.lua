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
local function keep(full) redis.call('SET', KEYS[1], string.format('%.3f', full), 'PX', math.ceil(full - now)) end
-- No use makes it later than this. A value that does was written before the clock was set back, or by another client; it is corrected,
-- so that the wait for it ends.
if not (known <= now + period) then
  known = now + period
  keep(known)
end
local full = math.max(known, now) + interval
local wait = full - period - now
-- Time is rounded to microseconds.
if wait > 0.1 then return math.ceil(wait) end
keep(full)
return 0
