-- Whether entries still belong to a consumer. The counter is bumped by every script that moves an
-- entry away from it and the generation changes with the group, so equal values prove that nothing moved.
local function fence_state(fence, consumer)
  local state = redis.call('HMGET', fence, 'generation', 'c:' .. consumer)
  return state[1] or '', state[2] or ''
end

-- The server process and its time (us): with them a fence never returns, also after the server has lost something.
local function stamp()
  local said = redis.pcall('INFO', 'server')
  local process = type(said) == 'string' and said:match('run_id:(%x%x%x%x%x%x%x%x)') or ''
  local time = redis.call('TIME')
  return string.format('%s%d%06d', process, time[1], time[2])
end

-- Say that entries were moved away from a consumer: count on what is random since it registered, which one that was forgotten can't know.
local function bump_fence(fence, consumer)
  local before = redis.call('HGET', fence, 'c:' .. consumer) or ''
  local count = (tonumber(before:match('%.(%d+)%.%w*$')) or 0) % 1000000 + 1
  local counter = string.format('%s.%d.%s', stamp(), count, before:match('%w*$'))
  redis.call('HSET', fence, 'c:' .. consumer, counter:sub(1, 80))
end

-- A consumer without a counter was forgotten: whatever it knows, it may have lost everything since.
local function is_unmoved(generation, counter, known_generation, known_counter)
  return counter ~= '' and counter == known_counter and generation == known_generation
end

-- An entry taken under another generation, or after others had it, may look pending again under the same name: it is a new delivery.
local function still_owned(queue, consumer, id, attempt, same_generation)
  if not same_generation then return false end
  local pending = redis.pcall('XPENDING', queue, 'g', id, id, 1, consumer)
  return pending.err == nil and #pending > 0 and pending[1][4] == tonumber(attempt)
end

-- Whether one entry, in its attempt of that number, is still the consumer's.
local function owns(queue, fence, consumer, known_generation, known_counter, id, attempt)
  local generation, counter = fence_state(fence, consumer)
  return is_unmoved(generation, counter, known_generation, known_counter)
    or still_owned(queue, consumer, id, attempt, generation == known_generation)
end

-- Whether a call may change what is kept of its session: its entry is still this consumer's. Then the later calls of the session wait for
-- its end, also at a worker that has the session by now. A call that has no place in the order of its session needs the session itself.
-- Equal counters prove nothing here: when this is sent again after a lost connection, the call may have ended, and others have changed more.
-- KEYS: 1 request stream, 2 fence, 3 owner of the session
-- ARGV: 1 consumer, 2 known generation, 3 known counter, 4 id, 5 number of the attempt, 6 "1" when it needs the session itself
local function may_keep()
  local generation = fence_state(KEYS[2], ARGV[1])
  if not still_owned(KEYS[1], ARGV[1], ARGV[4], ARGV[5], generation == ARGV[2]) then return false end
  return ARGV[6] ~= '1' or redis.pcall('GET', KEYS[3]) == ARGV[1]
end
