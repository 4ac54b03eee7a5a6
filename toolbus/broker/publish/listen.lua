#!lua flags=allow-oom
-- Make an agent's reply stream, together with its TTL: a connection that is lost between the two would leave it behind for good.
-- KEYS: 1 reply stream
-- ARGV: 1 TTL (ms)
redis.call('XADD', KEYS[1], '*', 'o', '1')
redis.call('PEXPIRE', KEYS[1], ARGV[1])
return redis.status_reply('OK')
