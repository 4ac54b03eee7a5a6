#!lua flags=no-writes
-- include lease/_lease
-- Count what is in one service's streams for operators, exactly and in one step.
-- KEYS: 1 request stream, 2 dead letters, 3 paused services, 4 the service's instances, 5 live instances, 6 fence
-- ARGV: 1 service
-- Returns {queued, running, dead letters, paused (0/1), live instances}
-- A key of another type counts as not there: the other services are to be seen all the same.
local function number(...)
  local found = redis.pcall(...)
  return type(found) == 'number' and found or 0
end

local length = number('XLEN', KEYS[1])
local pending = redis.pcall('XPENDING', KEYS[1], 'g')
local running = pending.err and 0 or pending[1]
-- An entry that waits for a worker to take it back, or for the one that has its session, does not run.
for _, consumer in ipairs(running > 0 and pending[4] or {}) do
  if consumer[1]:sub(1, 1) == '~' then running = running - consumer[2] end
end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local instances = 0
for _, field in ipairs(redis.pcall('HKEYS', KEYS[4])) do
  -- One whose lease has ended stays in the tables until a process that is there for longer sweeps them.
  if field:sub(1, 2) == 'i:' then
    local read, ends = pcall(read_lease, KEYS[5], KEYS[6], ARGV[1], field:sub(3), now)
    if read and (ends or 0) >= now then instances = instances + 1 end
  end
end
-- A group's lag is no exact backlog once entries are deleted; length minus pending always is.
return {length - running, running, number('XLEN', KEYS[2]), number('SISMEMBER', KEYS[3], ARGV[1]), instances}
