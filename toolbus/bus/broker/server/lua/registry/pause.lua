-- Make workers stop taking requests of a service. A pause that is not lifted ends with the registry's own memory.
-- KEYS: 1 paused services
-- ARGV: 1 service, 2 TTL (ms)
redis.call('SADD', KEYS[1], ARGV[1])
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return redis.status_reply('OK')
