#!lua flags=allow-oom
-- include publish/_cancel
-- include transport/_moving
-- A caller of a shared call waits no more: the call is cancelled when no other caller waits for it.
-- KEYS: 1 record of the key, 2 request stream, 3 cancelled calls
-- ARGV: 1 the caller's call id, 2 id of the call that runs, 3 entry, 4 milliseconds until the deadline, 5 wake channel, 6 key prefix,
--       7 1 when the work must not happen twice, 8 type of the error that the caller has ("cancelled" if left out)
-- Returns "shared" (others wait), or as cancelling does "removed", "signalled" or "gone".
local own = redis.call('HGET', KEYS[1], 'id') == ARGV[2]
local waits = false
if own then
  local callers = redis.call('HGETALL', KEYS[1])
  for i = 1, #callers, 2 do
    if callers[i]:sub(1, 2) == 'c:' and callers[i] ~= 'c:' .. ARGV[1] then
      -- A caller whose agent has died waits no more.
      local lives = redis.pcall('EXISTS', ARGV[6] .. 'rsp:' .. callers[i + 1])
      if is_elsewhere(lives) then return try_again() end
      waits = waits or lives == 1
    end
  end
  redis.call('HDEL', KEYS[1], 'c:' .. ARGV[1])
end
if waits then return 'shared' end
local entry = own and redis.call('HGET', KEYS[1], 'entry') or ARGV[3]
local fate = cancel(KEYS[2], KEYS[3], entry, ARGV[2], ARGV[4], ARGV[5], ARGV[8])
-- The next caller starts it anew. Finished work keeps its result, and so does work that may have had its effect and must not happen twice.
if own and (fate == 'removed' or (fate == 'signalled' and ARGV[7] ~= '1')) then redis.call('DEL', KEYS[1]) end
return fate
