#!lua flags=no-writes
-- include lease/_lease
-- include registry/_overview
-- Count what is in one service's streams for operators, exactly and in one step.
-- KEYS: 1 request stream, 2 dead letters, 3 paused services, 4 the service's instances, 5 live instances, 6 fence
-- ARGV: 1 service
-- Returns {queued, running, dead letters, paused (0/1), live instances}
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
return overview_of(KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], ARGV[1], now)
