#!lua
-- include streams/_streams
-- Append to a stream of which the latest entries are kept: records of recent calls, answers of workers, lines of a program's output.
-- KEYS: 1 the stream
-- ARGV: 1 most entries that are kept, about, 2 for how long they are kept after the last one (ms), 3 number of words of each entry, then
--       fields and values of each
-- Returns how many there are.
for i = 4, #ARGV, ARGV[3] do append(KEYS[1], 'MAXLEN', '~', ARGV[1], '*', unpack(ARGV, i, i + ARGV[3] - 1)) end
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return redis.call('XLEN', KEYS[1])
