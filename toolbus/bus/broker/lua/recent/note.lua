#!lua
-- include finish/_append
-- Append records of recent calls; the oldest ones make room.
-- KEYS: 1 recent calls
-- ARGV: 1 most records that are kept, about, 2 for how long they are kept after the last one (ms), 3.. records
-- Returns how many there are.
for i = 3, #ARGV do append(KEYS[1], 'MAXLEN', '~', ARGV[1], '*', 'c', ARGV[i]) end
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return redis.call('XLEN', KEYS[1])
