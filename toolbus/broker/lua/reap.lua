#!lua flags=allow-oom
-- Move entries of dead consumers, and entries nobody renews, to this consumer.
-- KEYS: 1 request stream, 2 fence, 3 live instances
-- ARGV: 1 consumer, 2 service, 3 most entries to take, 4 lease (ms)
-- Returns {generation, counter, {{id, delivery count, fields}, ...}}
local STRETCH = 1000
local queue, fence, me = KEYS[1], KEYS[2], ARGV[1]
local room, lease = tonumber(ARGV[3]), tonumber(ARGV[4])
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local taken = {}

local function claim(pending, owner)
  local ids, counts = {}, {}
  for _, entry in ipairs(pending) do
    ids[#ids + 1] = entry[1]
    counts[entry[1]] = entry[4] + 1
  end
  if #ids == 0 then return end
  for _, entry in ipairs(redis.call('XCLAIM', queue, 'g', me, 0, unpack(ids))) do
    taken[#taken + 1] = {entry[1], counts[entry[1]], entry[2]}
  end
  room = room - #ids
  redis.call('HINCRBY', fence, 'c:' .. owner, 1)
end

local consumers = redis.pcall('XINFO', 'CONSUMERS', queue, 'g')
if consumers.err then return {'', '', {}} end
for _, consumer in ipairs(consumers) do
  local name, held = consumer[2], consumer[4]
  if name ~= me then
    local lease_end = redis.call('ZSCORE', KEYS[3], ARGV[2] .. '/' .. name)
    if not lease_end or tonumber(lease_end) < now then
      if held > 0 and room > 0 then
        claim(redis.call('XPENDING', queue, 'g', '-', '+', math.min(room, 256), name), name)
      elseif held == 0 then
        -- Nothing pending, so deleting the consumer drops nothing. A consumer that comes back finds no counter: unequal.
        redis.call('XGROUP', 'DELCONSUMER', queue, 'g', name)
        redis.call('HDEL', fence, 'c:' .. name)
      end
    end
  end
end

-- Held entries are renewed three times a lease: an idle one of ours was delivered in a reply that got lost.
if room > 0 then
  claim(redis.call('XPENDING', queue, 'g', 'IDLE', lease, '-', '+', math.min(room, 256), me), me)
end
-- A live consumer that beats but no longer renews is found by all workers together: each reap looks at
-- the next stretch of the whole pending list, so that none walks it all, however long it is.
if room > 0 then
  local cursor = redis.call('HGET', fence, 'scan')
  local stretch = redis.call('XPENDING', queue, 'g', cursor and '(' .. cursor or '-', '+', STRETCH)
  cursor = nil
  for at, entry in ipairs(stretch) do
    if entry[3] >= 2 * lease then claim({entry}, entry[2]) end
    if room <= 0 or at == STRETCH then
      cursor = entry[1]
      break
    end
  end
  if cursor then redis.call('HSET', fence, 'scan', cursor) else redis.call('HDEL', fence, 'scan') end
end

local state = redis.call('HMGET', fence, 'generation', 'c:' .. me)
return {state[1] or '', state[2] or '', taken}
