-- Remove an entry that no worker has, or tell the workers: "removed", "signalled" or "gone" (already finished).
-- A request that waits for the worker that has its session, before its first attempt, never ran.
local function cancel(queue, cancelled, entry, call, left, wake, why)
  local pending = redis.pcall('XPENDING', queue, 'g', entry, entry, 1)
  if pending.err or #pending == 0 then
    return redis.call('XDEL', queue, entry) == 1 and 'removed' or 'gone'
  end
  if pending[1][2]:sub(1, 4) == '~to:' and pending[1][4] <= 1 then
    redis.call('XACK', queue, 'g', entry)
    return redis.call('XDEL', queue, entry) == 1 and 'removed' or 'gone'
  end
  local time = redis.call('TIME')
  local now = time[1] * 1000 + math.floor(time[2] / 1000)
  -- In this order, so that the set is never empty and gone in between.
  redis.call('ZADD', cancelled, now + left, call)
  redis.call('ZREMRANGEBYSCORE', cancelled, '-inf', now)
  if redis.call('PTTL', cancelled) < tonumber(left) then redis.call('PEXPIRE', cancelled, left + 1000) end
  -- Workers that don't know the first word read the second.
  if why and why ~= 'cancelled' then redis.call('PUBLISH', wake, 'over ' .. call .. ' ' .. why) end
  redis.call('PUBLISH', wake, 'cancel ' .. call)
  return 'signalled'
end
