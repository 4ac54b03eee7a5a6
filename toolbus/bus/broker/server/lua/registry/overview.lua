#!lua flags=no-writes
-- include lease/_lease
-- Count what is in the streams of services for operators, exactly.
-- KEYS: of each service 1 request stream, 2 dead letters, 3 paused services, 4 the service's instances, 5 live instances, 6 fence
-- ARGV: the services
-- Returns for each service {queued, running, dead letters, paused (0/1), live instances}
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

-- A key of another type counts as not there: the other services are to be seen all the same. What the user may not ask is an error.
local function asked(...)
  local found = redis.pcall(...)
  if type(found) == 'table' and found.err and not found.err:find('WRONGTYPE', 1, true) then return redis.call(...) end
  return found
end

local function number(...)
  local found = asked(...)
  return type(found) == 'number' and found or 0
end

local function overview_of(queue, dead_letters, paused, listed, live, fence, service, now)
  local length = number('XLEN', queue)
  local function lives(instance)
    local read, ends = pcall(read_lease, live, fence, service, instance, now)
    return read and (ends or 0) >= now
  end
  local pending, running, instances = redis.pcall('XPENDING', queue, 'g'), 0, 0
  -- What a dead worker held waits to be taken over, as what was put aside for a worker that is to take it does.
  for _, consumer in ipairs(not pending.err and pending[1] > 0 and pending[4] or {}) do
    if lives(consumer[1]) then running = running + consumer[2] end
  end
  for _, field in ipairs(asked('HKEYS', listed)) do
    -- One whose lease has ended stays in the tables until a process that is there for longer sweeps them.
    if field:sub(1, 2) == 'i:' and lives(field:sub(3)) then instances = instances + 1 end
  end
  -- A group's lag is no exact backlog once entries are deleted; length minus pending always is.
  return {length - running, running, number('XLEN', dead_letters), number('SISMEMBER', paused, service), instances}
end

local found = {}
for i, service in ipairs(ARGV) do
  local at = 6 * i
  found[i] = overview_of(KEYS[at - 5], KEYS[at - 4], KEYS[at - 3], KEYS[at - 2], KEYS[at - 1], KEYS[at], service, now)
end
return found
