#!lua flags=allow-oom
-- include take/_fence
-- include lease/_lease
-- include streams/_streams
-- Move to this consumer what was handed back or over to it, and entries of dead consumers, and entries that are not renewed.
-- KEYS: 1 request stream, 2 fence, 3 live instances, 4 pulse
-- ARGV: 1 consumer, 2 service, 3 most entries to take, 4 lease (ms), 5 "1" to take only what was handed back or over,
--       6 "1" when this worker holds other entries, 7 the attempt from which an entry runs alone,
--       8 "1" when this worker could make room for one, 9 prefix of the notes of entries
-- Returns {generation, counter,
--          {{id, delivery count until now, 1 when this one is to be counted, fields, its consumer until now, note or ""}, ...},
--          1 when this worker is to make room for an entry that must run alone,
--          id up to which entries have been delivered to anyone}
local STRETCH, MOST, MOST_DELIVERIES, MOST_MOVED = 1000, 256, 1000000000, 16384
local queue, fence, me = KEYS[1], KEYS[2], ARGV[1]
local room, lease, busy, alone = tonumber(ARGV[3]), tonumber(ARGV[4]), ARGV[6] == '1', tonumber(ARGV[7])
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local taken, left, workers, moved = {}, 0, 1, {}

-- Which notes are to be read turns out only when their entries are taken, and then it is too late to fail. This one never exists: where
-- it can be read, no key of the slot is elsewhere.
if is_elsewhere(redis.pcall('GET', ARGV[9] .. '0-0')) then return try_again() end

-- A third of the workers at most make room at a time, or the whole pool would stand still. The fence's field "room" names them:
-- "<consumer>=<until> ...".
local function may_make_room()
  local kept, mine = {}, false
  for name, until_ms in (redis.call('HGET', fence, 'room') or ''):gmatch('(%S+)=(%d+)') do
    local later = tonumber(until_ms)
    local lives = (lease_end_of(KEYS[3], fence, ARGV[2], name, now) or 0) >= now
    if name ~= me and lives and later > now and later < now + 4 * lease then kept[#kept + 1] = name .. '=' .. until_ms end
  end
  if #kept < math.max(1, math.floor(workers / 3)) then
    mine = true
    kept[#kept + 1] = me .. '=' .. string.format('%.0f', now + 3 * lease)
  end
  redis.call('HSET', fence, 'room', table.concat(kept, ' '))
  return mine
end

-- Entries are delivered in their order. Who set the group back or forward changed nothing about what had been delivered.
local function delivered()
  local groups = redis.pcall('XINFO', 'GROUPS', queue)
  for _, group in ipairs(groups.err and {} or groups) do
    if field(group, 'name') == 'g' then
      local position, pending = field(group, 'last-delivered-id'), redis.call('XPENDING', queue, 'g')[3] or '0-0'
      if is_beyond(position, newest(queue)) then position = '0-0' end
      return is_beyond(pending, position) and pending or position
    end
  end
  return '0-0'
end

-- What is delivered to a worker in a reply that gets lost, and what a dead worker ran once and is moved here in such a reply, have the same
-- count. The fence's field "moved" has the latest of the second kind: "<id> <id> ... ".
local function was_moved(id) return (' ' .. (redis.call('HGET', fence, 'moved') or '')):find(' ' .. id .. ' ', 1, true) ~= nil end

local function answer()
  if #moved > 0 then
    local known = (redis.call('HGET', fence, 'moved') or '') .. table.concat(moved, ' ') .. ' '
    redis.call('HSET', fence, 'moved', known:sub(-MOST_MOVED))
  end
  if left == 1 and (ARGV[8] == '0' or not may_make_room()) then left = 0 end
  local generation, counter = fence_state(fence, me)
  return {generation, counter, taken, left, delivered()}
end

-- A note of another type is none.
local function note_of(id)
  local note = redis.pcall('GET', ARGV[9] .. id)
  return type(note) == 'string' and note or ''
end

-- A suspect, which may have killed its workers, is taken alone: it must not take others with it, not even those behind it. A worker
-- that holds nothing looks for a suspect first; a busy one leaves it, and hears of it if it has waited.
local function is_suspect(entry, counted)
  local attempt = entry[4] + counted
  if attempt < alone then return false end
  -- Attempts that leaving workers cut off (hand_back.lua), or that waited for their turn (extend.lua), killed nobody.
  return attempt - (tonumber(note_of(entry[1]):match('^%d+ %d+ %d+ (%d+)$')) or 0) >= alone
end

-- An entry keeps its delivery count until its new consumer says that it runs it (count.lua): one that dies before has tried nothing.
local function take(entry, counted)
  -- A count that a stranger set may be more than the server takes.
  local delivered = math.min(entry[4], MOST_DELIVERIES)
  local found = redis.call('XCLAIM', queue, 'g', me, 0, entry[1], 'RETRYCOUNT', delivered)
  if not found[1] then return false end
  if counted == 1 and delivered == 1 and entry[2] ~= me then moved[#moved + 1] = entry[1] end
  taken[#taken + 1] = {entry[1], delivered, counted, found[1][2], entry[2], note_of(entry[1])}
  room = room - 1
  return true
end

-- "~back" and "~to:<instance>" are no workers: what waits under them keeps its delivery count, since no worker died of it.
local function waits(owner) return owner:sub(1, 1) == '~' end

local function take_suspect(pending, once_more)
  if busy then return false end
  for _, entry in ipairs(pending) do
    local counted = waits(entry[2]) and 0 or once_more
    if is_suspect(entry, counted) then
      if take(entry, counted) then
        if entry[2] ~= me and not waits(entry[2]) then bump_fence(fence, entry[2]) end
        room = 0
        may_make_room()
        return true
      end
    end
  end
  return false
end

-- A worker whose own lease has ended would lose at once what it took, and with it an attempt.
if (lease_end_of(KEYS[3], fence, ARGV[2], me, now) or 0) < now then return answer() end

for _, consumer in ipairs({'~to:' .. me, '~back'}) do
  if room > 0 then
    -- As many whatever the room is: what may run beside others does not wait behind a suspect.
    local back = redis.pcall('XPENDING', queue, 'g', '-', '+', MOST, consumer)
    if back.err then return {'', '', {}, 0, '0-0'} end
    if #taken == 0 and take_suspect(back, 0) then return answer() end
    for _, entry in ipairs(back) do
      if is_suspect(entry, 0) then
        left = 1
      elseif room > 0 then
        take(entry, 0)
      end
    end
  end
end
if ARGV[5] == '1' then return answer() end

local last, quiet = read_pulse(KEYS[4])
local judged = not is_silence(last, now, lease) and now >= quiet
-- Who saw a process end needs no judgement of its lease (retire.lua).
local function is_known_dead(instance) return redis.call('HEXISTS', fence, 'x:' .. instance) == 1 end

local function claim(pending, owner, spare)
  local moved, counted = false, waits(owner) and 0 or 1
  for _, entry in ipairs(pending) do
    if is_suspect(entry, counted) then
      if not spare then left = 1 end
    elseif room > 0 then
      moved = take(entry, counted) or moved
    end
  end
  if moved and owner ~= me and not waits(owner) then bump_fence(fence, owner) end
end

local consumers, dead = redis.call('XINFO', 'CONSUMERS', queue, 'g'), {}
workers = 0
for _, consumer in ipairs(consumers) do
  local name, held = consumer[2], consumer[4]
  -- The worker that entries wait for.
  local instance = name:match('^~to:(.*)$') or name
  if not waits(name) then workers = workers + 1 end
  if instance ~= me and (judged or is_known_dead(instance)) then
    local lease_end = lease_end_of(KEYS[3], fence, ARGV[2], instance, now)
    local is_dead = (lease_end or 0) < now
    if is_dead and held > 0 and #dead < 64 and name ~= '~back' then
      local pending = redis.call('XPENDING', queue, 'g', '-', '+', 64, name)
      -- A suspect waits half a lease for a worker that holds nothing, before others make room for it.
      dead[#dead + 1] = {name, pending, (lease_end or 0) > now - lease / 2}
    elseif not lease_end and held == 0 then
      -- Nothing pending, so deleting the consumer drops nothing. One that comes back is told by its beat to register again,
      -- and gets another counter; until then it has none, which equals nothing.
      redis.call('XGROUP', 'DELCONSUMER', queue, 'g', name)
      redis.call('HDEL', fence, 'c:' .. name, 'l:' .. name, 'x:' .. name)
    end
  end
end
for _, consumer in ipairs(dead) do
  if #taken == 0 and take_suspect(consumer[2], 1) then return answer() end
end
for _, consumer in ipairs(dead) do
  if room > 0 then claim(consumer[2], consumer[1], consumer[3]) end
end

if not judged then return answer() end

-- Held entries are renewed three times a lease: an idle one of ours was delivered in a reply that got lost. No worker ran it, so a first
-- delivery does not count again.
if room > 0 then
  local idle = redis.call('XPENDING', queue, 'g', 'IDLE', lease, '-', '+', MOST, me)
  if #taken == 0 and take_suspect(idle, 1) then return answer() end
  for _, entry in ipairs(idle) do
    if is_suspect(entry, 1) then
      left = 1
    elseif room > 0 then
      take(entry, (entry[4] > 1 or was_moved(entry[1])) and 1 or 0)
    end
  end
end
-- A worker may have been given another lease than this one, and renews three times in its own.
local function lease_of(owner) return tonumber(redis.call('HGET', fence, 'l:' .. owner) or 0) or 0 end

-- A live consumer that beats but no longer renews is found by all workers together: each reap looks at
-- the next stretch of the whole pending list, so that none walks it all, however long it is.
if room > 0 then
  local cursor = redis.call('HGET', fence, 'scan')
  if cursor and not cursor:match('^%d+%-%d+$') then cursor = nil end
  -- An id that no entry can have is an error.
  local stretch = cursor and redis.pcall('XPENDING', queue, 'g', '(' .. cursor, '+', STRETCH)
  if not stretch or stretch.err then stretch = redis.call('XPENDING', queue, 'g', '-', '+', STRETCH) end
  cursor = nil
  for at, entry in ipairs(stretch) do
    if entry[3] >= 2 * lease and not waits(entry[2]) and entry[3] >= 2 * lease_of(entry[2]) then
      if #taken == 0 and take_suspect({entry}, 1) then return answer() end
      claim({entry}, entry[2])
    end
    if room <= 0 or at == STRETCH then
      cursor = entry[1]
      break
    end
  end
  if cursor then redis.call('HSET', fence, 'scan', cursor) else redis.call('HDEL', fence, 'scan') end
end

return answer()
