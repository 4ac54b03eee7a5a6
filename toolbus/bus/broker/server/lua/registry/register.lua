#!lua flags=allow-oom
-- include streams/_streams
-- include take/_fence
-- include registry/_registry
-- Publish a service and its tools for one instance: all of it, or nothing when a name belongs to another owner.
-- KEYS (after the common six): the service's four, then tables of services for which names may be held that do not exist any more
-- ARGV (after the common four): 5 service, 6 instance, 7 owner, 8 digest, 9 publication, 10 lease (ms),
--       11 random text for this consumer's first counter, and for the generation of a group that has to be made, 12 scale to zero ("1"), 13 queue, 14 earlier start number or 0, then tool names
-- Returns {"ok", start number, generation, counter} or {"refused", name, owner, name, owner, ...}
local service, instance, owner, digest = ARGV[5], ARGV[6], ARGV[7], ARGV[8]
local own = keys_of(1)
local queue, fence = own.queue, own.fence
local refused = {'refused'}
local missing = missing_tables(11)

local function check(field, label, own_service)
  local held_by, held_for, free_at = holder(field)
  if not held_by then return end
  local held = free_at == 0
  if held and is_nowhere(held_for, missing) then return end
  if held_by ~= owner and (held or now < free_at) then
    refused[#refused + 1] = label
    refused[#refused + 1] = held_by
  elseif held and held_for ~= own_service then
    refused[#refused + 1] = label
    refused[#refused + 1] = held_by .. ' (service ' .. held_for .. ')'
  end
end

check('s:' .. service, 'tool-service/' .. service, service)
-- Each service's workers judge who is alive among its own: on a queue of two services they would take each other's running calls.
check('q:' .. ARGV[13], 'queue/' .. ARGV[13], service)
for i = 15, #ARGV do
  check('t:' .. ARGV[i], 'tool/' .. ARGV[i], service)
  if redis.call('HEXISTS', items, 'tool/' .. ARGV[i]) == 1 then
    refused[#refused + 1] = 'tool/' .. ARGV[i]
    refused[#refused + 1] = 'operator'
  end
end
if #refused > 1 then return refused end

-- A registration whose answer was lost is sent again with the same random text, also after the server has lost what the first one wrote.
local random = stamp() .. ARGV[11]
-- A group that had to be made anew knows nothing of earlier deliveries: a new generation fences them off.
local made = redis.pcall('XGROUP', 'CREATE', queue, 'g', '0', 'MKSTREAM')
if type(made) ~= 'table' or made.ok or redis.call('HEXISTS', fence, 'generation') == 0 then
  -- Its number orders attempts, since delivery counts start anew with the group.
  local before = (redis.call('HGET', fence, 'generation') or '-1'):match('^%-?%d+')
  before = before and #before < 10 and tonumber(before)
  -- With the newest of the entries that an earlier group may have delivered.
  local found = redis.pcall('XREVRANGE', queue, '+', '-', 'COUNT', 1)
  local behind = not found.err and found[1] and '.' .. found[1][1] or ''
  local generation = string.format('%d.%s%s', (before or 0) + 1, random, behind)
  redis.call('HSET', fence, 'generation', generation)
end
-- One that was forgotten while it was cut off must not come back with the counter under which it lost everything.
redis.call('HSETNX', fence, 'c:' .. instance, random)
redis.call('HSET', fence, 'l:' .. instance, ARGV[10])
redis.call('PEXPIRE', queue, ttl)
redis.call('PEXPIRE', fence, ttl)

local start = tonumber(ARGV[14])
if start > 0 then
  -- A counter that was lost must not give later starts smaller numbers.
  local counted = (redis.call('HGET', meta, 'start') or ''):match('^%d+$')
  if not counted or #counted > 15 or tonumber(counted) < start then redis.call('HSET', meta, 'start', string.format('%.0f', start)) end
else
  start = redis.pcall('HINCRBY', meta, 'start', 1)
  -- A counter that is no number, or the last one, begins anew with the time, which is more than any number of starts.
  if type(start) == 'table' then
    start = now
    redis.call('HSET', meta, 'start', string.format('%.0f', start))
  end
end
local key = own.instances
local tools = {}
for i = 15, #ARGV do
  tools[#tools + 1] = ARGV[i]
  hold('t:' .. ARGV[i], owner, service)
end
hold('s:' .. service, owner, service)
local queue_before = redis.call('HGET', key, 'queue')
if queue_before and queue_before ~= ARGV[13] then release('q:' .. queue_before, owner, service) end
hold('q:' .. ARGV[13], owner, service)
redis.call('HSET', key, 'owner', owner, 'queue', ARGV[13], 'scale_to_zero', ARGV[12],
  'i:' .. instance, string.format('%.0f', start) .. ':' .. digest, 'd:' .. digest, ARGV[9], 'n:' .. digest, table.concat(tools, '\n'))
redis.call('ZADD', live, now + ARGV[10], service .. '/' .. instance)
settle(service, own)
remember()
forget_names()
keep({services, names, meta, live, key})
local state = redis.call('HMGET', fence, 'generation', 'c:' .. instance)
return {'ok', start, state[1], state[2]}
