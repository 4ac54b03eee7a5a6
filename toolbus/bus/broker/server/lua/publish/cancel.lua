#!lua flags=allow-oom
-- include streams/_streams
-- Cancel a call: remove it if no worker has it, else tell the workers. A caller of a shared call only waits no more, while others wait for it.
-- KEYS: 1 request stream, 2 cancelled calls, and of a shared call 3 the record of its key
-- ARGV: 1 entry, 2 id of the call that runs, 3 milliseconds until its deadline, 4 wake channel, 5 type of the error that the caller has
--       ("cancelled" if left out), and of a shared call, or work that must not happen twice, 6 the caller's call id, 7 key prefix, 8 "1" for
--       such work
-- Returns "removed" (it never ran), "signalled", "gone" (already finished) or "shared" (others wait).
local queue, cancelled, record, call, wake, why = KEYS[1], KEYS[2], KEYS[3], ARGV[2], ARGV[4], ARGV[5]
local own = record and redis.call('HGET', record, 'id') == call
local waits = false
-- What another group had delivered, and this one has not delivered again, is not pending. Work that must not happen twice has left a mark.
local began = ARGV[8] == '1' and redis.pcall('EXISTS', ARGV[7] .. 'started:' .. call)
if is_elsewhere(began) then return try_again() end
if own then
  local callers = redis.call('HGETALL', record)
  for i = 1, #callers, 2 do
    if callers[i]:sub(1, 2) == 'c:' and callers[i] ~= 'c:' .. ARGV[6] then
      -- A caller whose agent has died waits no more.
      local lives = redis.pcall('EXISTS', ARGV[7] .. 'rsp:' .. callers[i + 1])
      if is_elsewhere(lives) then return try_again() end
      waits = waits or lives == 1
    end
  end
  redis.call('HDEL', record, 'c:' .. ARGV[6])
end
if waits then return 'shared' end

-- A server process that is not the one which accepted work that must not happen twice may have forgotten that a worker had it.
local function may_have_forgotten(fields)
  for i = 1, #fields, 2 do
    if fields[i] == 's' then
      local said = redis.pcall('INFO', 'server')
      return type(said) ~= 'string' or not said:find('run_id:' .. fields[i + 1], 1, true)
    end
  end
  return false
end

local function take_back(entry)
  local found = redis.call('XRANGE', queue, entry, entry)
  if #found == 0 then return 'gone' end
  local pending = redis.pcall('XPENDING', queue, 'g', entry, entry, 1)
  local untaken = #pending == 0
  -- Whether a group that is gone had delivered it, nobody knows. A request that waits for the worker that has its session, before its
  -- first attempt, never ran.
  local known = not pending.err and began ~= 1 and not may_have_forgotten(found[1][2])
  if known and (untaken or (pending[1][2]:sub(1, 4) == '~to:' and pending[1][4] <= 1)) then
    if not untaken then redis.call('XACK', queue, 'g', entry) end
    redis.call('XDEL', queue, entry)
    return 'removed'
  end
  local time = redis.call('TIME')
  local now = time[1] * 1000 + math.floor(time[2] / 1000)
  -- In this order, so that the set is never empty and gone in between.
  redis.call('ZADD', cancelled, now + ARGV[3], call)
  redis.call('ZREMRANGEBYSCORE', cancelled, '-inf', now)
  if redis.call('PTTL', cancelled) < tonumber(ARGV[3]) then redis.call('PEXPIRE', cancelled, ARGV[3] + 1000) end
  -- Workers that don't know the first word read the second.
  if why and why ~= 'cancelled' then redis.call('PUBLISH', wake, 'over ' .. call .. ' ' .. why) end
  redis.call('PUBLISH', wake, 'cancel ' .. call)
  return 'signalled'
end

local fate = take_back(own and redis.call('HGET', record, 'entry') or ARGV[1])
-- The next caller starts it anew. Finished work keeps its result, and so does work that may have had its effect and must not happen twice.
if own and (fate == 'removed' or (fate == 'signalled' and ARGV[8] ~= '1')) then redis.call('DEL', record) end
return fate
