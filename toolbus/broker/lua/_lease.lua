-- When an instance's lease ends (ms), or nil when it is not registered. One that ends further ahead than any beat sets it was
-- written before the server's clock was set back: it counts as ended.
local function lease_end_of(live, fence, service, instance, now)
  local member = service .. '/' .. instance
  local ends = redis.call('ZSCORE', live, member)
  if not ends then return nil end
  local longest = tonumber(redis.call('HGET', fence, 'l:' .. instance) or 0)
  if longest > 0 and tonumber(ends) > now + 2 * longest then
    redis.call('ZADD', live, 'XX', now - 1, member)
    return now - 1
  end
  return tonumber(ends)
end
