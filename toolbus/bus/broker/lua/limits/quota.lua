#!lua flags=allow-oom
-- Count one use against a quota that starts anew in each period of the server's clock.
-- KEYS: 1 the quota
-- ARGV: 1 limit, 2 period (ms)
-- Returns 0 when it was counted, else the milliseconds until the period ends.
local limit, period = tonumber(ARGV[1]), tonumber(ARGV[2])
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local current = string.format('%.0f', math.floor(now / period))
local left = period - now % period
local known = redis.pcall('HMGET', KEYS[1], 'period', 'used')
if known.err then
  redis.call('DEL', KEYS[1])
  known = {}
end
local used = known[1] == current and tonumber(known[2]) or 0
-- A value that is no number of uses counts as none.
if not (used >= 0 and used <= 1e15) then used = 0 end
if used >= limit then return math.ceil(left) end
redis.call('HSET', KEYS[1], 'period', current, 'used', used + 1)
redis.call('PEXPIRE', KEYS[1], math.ceil(left))
return 0
