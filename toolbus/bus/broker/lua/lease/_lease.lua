-- When an instance's lease ends (ms), nil when it has none; and whether that end is impossible, since it lies further ahead
-- than any beat sets it: it was written before the server's clock was set back, and counts as ended.
local function read_lease(live, fence, service, instance, now)
  local ends = redis.call('ZSCORE', live, service .. '/' .. instance)
  if not ends then return nil end
  local longest = tonumber(redis.call('HGET', fence, 'l:' .. instance) or 0) or 0
  if longest > 0 and tonumber(ends) > now + 2 * longest then return now - 1, true end
  return tonumber(ends), false
end

-- The same; an impossible end is corrected.
local function lease_end_of(live, fence, service, instance, now)
  local ends, impossible = read_lease(live, fence, service, instance, now)
  if impossible then redis.call('ZADD', live, 'XX', ends, service .. '/' .. instance) end
  return ends
end
