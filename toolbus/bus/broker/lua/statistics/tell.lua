#!lua
-- include finish/_append
-- Answer one who asked for statistics.
-- KEYS: 1 the answers to one question
-- ARGV: 1 for how long they are kept (ms), 2 the answer, 3 most answers
-- Returns how many there are.
append(KEYS[1], 'MAXLEN', '~', ARGV[3], '*', 'a', ARGV[2])
redis.call('PEXPIRE', KEYS[1], ARGV[1])
return redis.call('XLEN', KEYS[1])
