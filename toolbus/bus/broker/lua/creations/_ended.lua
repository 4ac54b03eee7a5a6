-- Write the end of a task, whose lease goes; a task is never in two of the sets.
local function put_end(record, queued, running, ended, id, status, result, now, kept, most, channel)
  redis.call('HSET', record, 'status', status, 'result', result, 'ended', string.format('%.0f', now), 'progress', '')
  redis.call('HDEL', record, 'until', 'lease')
  redis.call('PEXPIRE', record, kept)
  -- In this order, so that it is found in one of them in any case.
  redis.call('ZADD', ended, now, id)
  redis.call('ZREMRANGEBYSCORE', ended, '-inf', now - kept)
  redis.call('ZREMRANGEBYRANK', ended, 0, -(most + 1))
  redis.call('PEXPIRE', ended, kept)
  redis.call('ZREM', queued, id)
  redis.call('ZREM', running, id)
  redis.call('PUBLISH', channel, 'ended ' .. id)
end
