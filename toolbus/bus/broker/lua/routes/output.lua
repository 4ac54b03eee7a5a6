#!lua
-- include finish/_append
-- include routes/_kind
-- Append lines of a program's output; the oldest ones make room.
-- KEYS: 1 output of a tool
-- ARGV: 1 host, 2 most lines that are kept, about, 3 for how long they are kept after the last one (ms), 4.. lines
-- Returns how many there are.
of_kind(KEYS[1], 'stream')
for i = 4, #ARGV do append(KEYS[1], 'MAXLEN', '~', ARGV[2], '*', 'h', ARGV[1], 'l', ARGV[i]) end
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return redis.call('XLEN', KEYS[1])
