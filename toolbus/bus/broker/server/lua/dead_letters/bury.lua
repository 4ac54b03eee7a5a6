#!lua flags=allow-oom
-- include take/_fence
-- include streams/_streams
-- Take an entry out of its stream and end its call with an error frame: a worker sets it aside as a dead letter, or an operator removes it
-- while no worker has it.
-- KEYS: 1 request stream, 2 fence, 3 dead letters, 4 record of the call's idempotency key and 5 started mark,
--       if the key is to be free again unless another run began `once` work
-- ARGV: 1 consumer, "" for an operator, 2 known generation, 3 known counter, 4 id, 5 reason, "" to keep no dead letter, 6 number of its
--       attempt, 7 last error (its message), 8 document, 9 most dead letters, 10 TTL (ms), 11 reply stream or "", 12 frames (a JSON list) or "",
--       13 call id and 14 run token, or "" without KEYS 4
-- Returns 1, or 0 when the entry is no longer ours, or nobody's.
local queue, entry = KEYS[1], ARGV[4]
local function waits()
  local pending = redis.pcall('XPENDING', queue, 'g', entry, entry, 1)
  local free = pending.err or #pending == 0 or pending[1][2]:sub(1, 1) == '~'
  return free and #redis.call('XRANGE', queue, entry, entry) > 0
end

if ARGV[1] == '' then
  if not waits() then return 0 end
elseif not owns(queue, KEYS[2], ARGV[1], ARGV[2], ARGV[3], entry, ARGV[6]) then
  return 0
end
local frees = KEYS[4] and is_free(KEYS[4], ARGV[13], KEYS[5], ARGV[14])
if ARGV[11] ~= '' and reply(ARGV[11], ARGV[12]) == 'moving' then return try_again() end
if frees then redis.call('DEL', KEYS[4]) end
-- A script that is sent again, since its answer was lost with its connection, finds its entry acknowledged.
local first = redis.call('XACK', queue, 'g', entry) > 0 or ARGV[1] == ''
if first and ARGV[5] ~= '' then
  append(KEYS[3], 'MAXLEN', '~', ARGV[9], '*',
    'reason', ARGV[5], 'attempts', ARGV[6], 'error', ARGV[7], 'r', ARGV[8], 'entry', entry)
  redis.call('PEXPIRE', KEYS[3], ARGV[10])
end
redis.call('XDEL', queue, entry)
return 1
