#!lua flags=allow-oom
-- include take/_fence
-- include transport/_moving
-- include finish/_reply
-- include publish/_free
-- include finish/_append
-- Set an entry aside as a dead letter, and end its call with an error frame.
-- KEYS: 1 request stream, 2 fence, 3 dead letters, 4 record of the call's idempotency key and 5 started mark,
--       if the key is to be free again unless another run began `once` work
-- ARGV: 1 consumer, 2 known generation, 3 known counter, 4 id, 5 reason, 6 number of its attempt, 7 last error, 8 document,
--       9 most dead letters, 10 TTL (ms), 11 reply stream or "", 12 frames (a JSON list), 13 call id, 14 run token
-- Returns 1, or 0 when the entry is no longer ours.
if not owns(KEYS[1], KEYS[2], ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[6]) then return 0 end
local frees = KEYS[4] and is_free(KEYS[4], ARGV[13], KEYS[5], ARGV[14])
if ARGV[11] ~= '' and reply(ARGV[11], ARGV[12]) == 'moving' then return try_again() end
if frees then redis.call('DEL', KEYS[4]) end
append(KEYS[3], 'MAXLEN', '~', ARGV[9], '*',
  'reason', ARGV[5], 'attempts', ARGV[6], 'error', ARGV[7], 'r', ARGV[8], 'entry', ARGV[4])
redis.call('PEXPIRE', KEYS[3], ARGV[10])
redis.call('XACK', KEYS[1], 'g', ARGV[4])
redis.call('XDEL', KEYS[1], ARGV[4])
return 1
