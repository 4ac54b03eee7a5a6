#!lua flags=allow-oom
-- Leave a request stream: delete this consumer if nothing is pending for it, and the stream itself
-- if nobody serves it and nothing waits in it.
-- KEYS: 1 request stream, 2 fence, 3 cancelled calls, 4 the service's instances
-- ARGV: 1 consumer
local pending = redis.pcall('XPENDING', KEYS[1], 'g', '-', '+', 1, ARGV[1])
if pending.err == nil and #pending == 0 then
  redis.call('XGROUP', 'DELCONSUMER', KEYS[1], 'g', ARGV[1])
  redis.call('HDEL', KEYS[2], 'c:' .. ARGV[1], 'l:' .. ARGV[1])
end
if redis.call('EXISTS', KEYS[4]) == 0 and redis.call('XLEN', KEYS[1]) == 0 then
  redis.call('DEL', KEYS[1], KEYS[2], KEYS[3])
end
return 1
