#!lua flags=allow-oom
-- include _fence
-- include _reply
-- Finish what this consumer still owns of a batch, some of which may have been moved: the terminal frames, XACK and XDEL.
-- KEYS: 1 request stream, 2 fence
-- ARGV: 1 consumer, 2 known generation, 3 known counter, 4 number of ids, then each id and the number of its attempt,
--       then per agent: reply stream, number of frames, then per frame: index of its id, frame;
--       or "!" and the record of an idempotency key, 1, index of its id, call id: it failed, so the key is free again
-- Returns {generation, counter, {index of a lost id, ...}, {reply stream that is gone, ...}, requests that are left}
local queue, fence, consumer = KEYS[1], KEYS[2], ARGV[1]
local generation, counter = fence_state(fence, consumer)
local count = tonumber(ARGV[4])
local lost, is_lost, accepted = {}, {}, {}
local unmoved = is_unmoved(generation, counter, ARGV[2], ARGV[3])
for i = 1, count do
  local id, attempt = ARGV[3 + 2 * i], ARGV[4 + 2 * i]
  if unmoved or still_owned(queue, consumer, id, attempt, generation == ARGV[2]) then
    accepted[#accepted + 1] = id
  else
    is_lost[i] = true
    lost[#lost + 1] = i
  end
end

local gone = {}
local at = 5 + 2 * count
while at <= #ARGV do
  local replies, frames = ARGV[at], {}
  local last = at + 1 + 2 * tonumber(ARGV[at + 1])
  for j = at + 2, last, 2 do
    if not is_lost[tonumber(ARGV[j])] then frames[#frames + 1] = ARGV[j + 1] end
  end
  at = last + 1
  if #frames > 0 and replies:sub(1, 1) == '!' then
    local record = replies:sub(2)
    if redis.call('HGET', record, 'id') == frames[1] then redis.call('DEL', record) end
  elseif #frames > 0 then
    local id = reply(replies, '[' .. table.concat(frames, ',') .. ']')
    if id == 'moving' then return redis.error_reply('TRYAGAIN the slot is being moved') end
    if not id then gone[#gone + 1] = replies end
  end
end

if #accepted > 0 then
  redis.call('XACK', queue, 'g', unpack(accepted))
  redis.call('XDEL', queue, unpack(accepted))
end
return {generation, counter, lost, gone, redis.call('XLEN', queue)}
