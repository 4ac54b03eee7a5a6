#!lua flags=allow-oom
-- Leave a request stream: end this worker's lease, delete its consumer if nothing is pending for it, likewise the one under which
-- entries of its sessions wait, and the stream itself if no worker serves it and nothing waits in it; what waits has an hour.
-- KEYS: 1 request stream, 2 fence, 3 cancelled calls, 4 the service's instances, 5 live instances
-- ARGV: 1 consumer, 2 service, 3 "1" when its process has ended without this, and others may take over at once what it holds
-- One that could not leave the registry before is swept out of it when its lease has ended.
if redis.call('HEXISTS', KEYS[4], 'i:' .. ARGV[1]) == 0 then redis.call('ZREM', KEYS[5], ARGV[2] .. '/' .. ARGV[1]) end
for _, consumer in ipairs({ARGV[1], '~to:' .. ARGV[1]}) do
  local pending = redis.pcall('XPENDING', KEYS[1], 'g', '-', '+', 1, consumer)
  if pending.err == nil and #pending == 0 then
    redis.call('XGROUP', 'DELCONSUMER', KEYS[1], 'g', consumer)
    redis.call('HDEL', KEYS[2], 'c:' .. consumer, 'l:' .. consumer, 'x:' .. consumer)
  elseif pending.err == nil and ARGV[3] == '1' then
    redis.call('HSET', KEYS[2], 'x:' .. ARGV[1], '1')
  end
end
if redis.call('EXISTS', KEYS[4]) == 0 then
  if redis.call('XLEN', KEYS[1]) == 0 then
    redis.call('DEL', KEYS[1], KEYS[2], KEYS[3])
  else
    -- Its last beats have prolonged what ends an hour after the last worker.
    for i = 1, 3 do
      if redis.call('PTTL', KEYS[i]) > 3600000 then redis.call('PEXPIRE', KEYS[i], 3600000) end
    end
  end
end
return 1
