#!lua flags=no-writes
-- include lease/_lease
-- include registry/_overview
-- Count what is in the streams of several services for operators.
-- KEYS: of each service the six keys of overview.lua, in its order
-- ARGV: the services
-- Returns for each service {queued, running, dead letters, paused (0/1), live instances}
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local found = {}
for i, service in ipairs(ARGV) do
  local at = 6 * i
  found[i] = overview_of(KEYS[at - 5], KEYS[at - 4], KEYS[at - 3], KEYS[at - 2], KEYS[at - 1], KEYS[at], service, now)
end
return found
