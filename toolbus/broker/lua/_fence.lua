-- Whether entries still belong to a consumer. The counter is bumped by every script that moves an
-- entry away from it and the generation changes with the group, so equal values prove that nothing moved.
local function fence_state(fence, consumer)
  local state = redis.call('HMGET', fence, 'generation', 'c:' .. consumer)
  return state[1] or '', state[2] or ''
end

-- An entry taken under another generation may look pending again under the same name: it is a new delivery.
local function still_owned(queue, consumer, id, same_generation)
  if not same_generation then return false end
  local pending = redis.pcall('XPENDING', queue, 'g', id, id, 1, consumer)
  return pending.err == nil and #pending > 0
end
