-- Whether entries still belong to a consumer. The counter is bumped by every script that moves an
-- entry away from it and the generation changes with the group, so equal values prove that nothing moved.
local function fence_state(fence, consumer)
  local state = redis.call('HMGET', fence, 'generation', 'c:' .. consumer)
  if state[2] then return state[1] or '', state[2] end
  -- Nobody counts for a consumer that was forgotten. What it is told then must never be equal: its counter may come, with entries that are
  -- moved away from it, and go with the consumer, and "none" would look as if nothing had happened in between.
  local time = redis.call('TIME')
  return state[1] or '', 'none.' .. time[1] .. '.' .. time[2]
end

-- Say that entries were moved away from a consumer. A counter that is new begins with the time, so that it repeats no earlier one.
local function bump_fence(fence, consumer)
  local time = redis.call('TIME')
  redis.call('HSETNX', fence, 'c:' .. consumer, string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000)))
  redis.call('HINCRBY', fence, 'c:' .. consumer, 1)
end

-- An entry taken under another generation may look pending again under the same name: it is a new delivery.
local function still_owned(queue, consumer, id, same_generation)
  if not same_generation then return false end
  local pending = redis.pcall('XPENDING', queue, 'g', id, id, 1, consumer)
  return pending.err == nil and #pending > 0
end
