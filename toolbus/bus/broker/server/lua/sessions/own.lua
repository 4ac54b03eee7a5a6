#!lua flags=allow-oom
-- include take/_fence
-- include lease/_lease
-- Settle which worker has the sessions of some entries: the first worker to ask has it until it gives it up or its lease ends. An entry
-- of a session that another live worker has waits for that one under the consumer "~to:<instance>", with the number of its next run.
-- KEYS: 1 request stream, 2 fence, 3 live instances, 4 pulse, 5 the service's instances, 6.. owners of sessions
-- ARGV: 1 consumer, 2 service, 3 known generation, 4 lease (ms), 5 TTL of an owner (ms), 6 wake channel,
--       then per entry: index of its session in KEYS, id or "" (only the session is meant), number of its attempt, 1 if that has begun, else 0
-- Returns {generation, counter before, counter now, {"mine", "new", "heir <now>" (it is ours now; its owner has ended, or has lost
-- its state), "moved" or "lost" (the entry), ...}}
local queue, fence, me, service, wake = KEYS[1], KEYS[2], ARGV[1], ARGV[2], ARGV[6]
local generation, before = fence_state(fence, me)
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local last, quiet = read_pulse(KEYS[4])
local judges = not (is_silence(last, now, tonumber(ARGV[4])) or now < quiet)

-- After a silence every lease looks ended: then only a worker that is not registered has no sessions. A draining one is not registered.
local function is_live(instance)
  if redis.call('HEXISTS', KEYS[5], 'i:' .. instance) == 0 then return false end
  local ends = lease_end_of(KEYS[3], fence, service, instance, now)
  return ends ~= nil and (ends >= now or not judges)
end

local verdicts, told, moved = {}, {}, false
for i = 7, #ARGV, 4 do
  local key, id = KEYS[tonumber(ARGV[i])], ARGV[i + 1]
  local owner = redis.pcall('GET', key)
  if type(owner) == 'table' then
    -- A key of another type is no owner.
    if not owner.err:find('WRONGTYPE', 1, true) then return redis.error_reply(owner.err) end
    owner = false
  end
  local verdict
  if id ~= '' and not still_owned(queue, me, id, ARGV[i + 2], generation == ARGV[3]) then
    verdict = 'lost'
  elseif owner == me or not owner or not is_live(owner) then
    verdict = owner == me and 'mine' or owner and string.format('heir %.0f', now) or 'new'
    redis.call('SET', key, me, 'PX', ARGV[5])
  else
    verdict = 'moved'
    if id ~= '' then
      redis.call('XCLAIM', queue, 'g', '~to:' .. owner, 0, id, 'RETRYCOUNT', ARGV[i + 2] + ARGV[i + 3], 'JUSTID')
      moved = true
      if not told[owner] then redis.call('PUBLISH', wake, 'to ' .. owner .. ' ' .. service) end
      told[owner] = true
    end
  end
  verdicts[#verdicts + 1] = verdict
end
if moved then bump_fence(fence, me) end
local _, after = fence_state(fence, me)
return {generation, before, after, verdicts}
