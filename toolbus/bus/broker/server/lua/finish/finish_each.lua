#!lua flags=allow-oom
-- include take/_fence
-- include streams/_streams
-- Finish what this consumer still owns of a batch, some of which may have been moved: the terminal frames, XACK and XDEL.
-- KEYS: 1 request stream, 2 fence, 3.. records of idempotency keys, each followed by the started mark of its call
-- ARGV: 1 consumer, 2 known generation, 3 known counter, 4 number of ids, then each id and the number of its attempt,
--       then per agent: reply stream, number of frames, then per frame: index of its id, frame;
--       or "!" and the index in KEYS of an idempotency key's record, 2, and twice the index of its id and: call id, run token. The run failed
--       and began nothing that must not happen twice, so the key is free again, unless the mark says that another run did
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

local gone, freed = {}, {}
local at = 5 + 2 * count
while at <= #ARGV do
  local replies, frames = ARGV[at], {}
  local last = at + 1 + 2 * tonumber(ARGV[at + 1])
  for j = at + 2, last, 2 do
    if not is_lost[tonumber(ARGV[j])] then frames[#frames + 1] = ARGV[j + 1] end
  end
  at = last + 1
  if #frames > 0 and replies:sub(1, 1) == '!' then
    local at_key = tonumber(replies:sub(2))
    if is_free(KEYS[at_key], frames[1], KEYS[at_key + 1], frames[2]) then freed[#freed + 1] = KEYS[at_key] end
  elseif #frames > 0 then
    local id, anew = reply(replies, '[' .. table.concat(frames, ',') .. ']')
    if id == 'moving' then return try_again() end
    if anew or not id then gone[#gone + 1] = replies end
  end
end

-- Nothing can fail from here on.
for _, record in ipairs(freed) do redis.call('DEL', record) end
if #accepted > 0 then
  redis.call('XACK', queue, 'g', unpack(accepted))
  redis.call('XDEL', queue, unpack(accepted))
end
return {generation, counter, lost, gone, redis.call('XLEN', queue)}
