#!lua flags=allow-oom
-- Count uses: one against a rate, which allows as many at once and is refilled evenly over the period; one against a quota, which starts anew
-- in each period of the server's clock; or any number for a day's usage.
-- KEYS: 1 the rate, the quota or the day
-- ARGV: 1 "rate" or "quota", 2 limit, 3 period (ms); or 1 "usage", 2 most pairs of user and tool, 3 TTL (ms), 4 the pair that stands for all
--       further ones, then of each pair: its name, calls, errors, milliseconds, bytes
-- Returns 0 when it was counted, else the milliseconds until there is room.
local key, limit, period = KEYS[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local time = redis.call('TIME')
local now = time[1] * 1000 + time[2] / 1000

local function spend_rate()
  -- When everything used so far will have been refilled.
  local known = redis.pcall('GET', key)
  known = type(known) == 'string' and tonumber(known) or 0
  local function keep(full) redis.call('SET', key, string.format('%.3f', full), 'PX', math.ceil(full - now)) end
  -- No use makes it later than this. A value that does was written before the clock was set back, or by another client; it is corrected,
  -- so that the wait for it ends.
  if not (known <= now + period) then
    known = now + period
    keep(known)
  end
  local full = math.max(known, now) + period / limit
  local wait = full - period - now
  -- Time is rounded to microseconds.
  if wait > 0.1 then return math.ceil(wait) end
  keep(full)
  return 0
end

local function spend_quota()
  now = math.floor(now)
  local current = string.format('%.0f', math.floor(now / period))
  local left = period - now % period
  local known = redis.pcall('HMGET', key, 'period', 'used')
  if known.err then
    redis.call('DEL', key)
    known = {}
  end
  local used = known[1] == current and tonumber(known[2]) or 0
  -- A value that is no number of uses counts as none.
  if not (used >= 0 and used <= 1e15) then used = 0 end
  if used >= limit then return math.ceil(left) end
  redis.call('HSET', key, 'period', current, 'used', used + 1)
  redis.call('PEXPIRE', key, math.ceil(left))
  return 0
end

local function add_usage()
  local counts = {'calls', 'errors', 'ms', 'bytes'}
  for i = 5, #ARGV, 5 do
    local pair = ARGV[i]
    if redis.call('HLEN', key) >= limit * #counts and redis.call('HEXISTS', key, 'calls' .. pair) == 0 then pair = ARGV[4] end
    for j, count in ipairs(counts) do
      local added = redis.pcall('HINCRBY', key, count .. pair, ARGV[i + j])
      -- A value that can't be added to begins anew.
      if type(added) == 'table' and not added.err:find('WRONGTYPE', 1, true) then redis.call('HSET', key, count .. pair, ARGV[i + j]) end
    end
  end
  redis.call('PEXPIRE', key, period)
  return 0
end

return ({rate = spend_rate, quota = spend_quota, usage = add_usage})[ARGV[1]]()
