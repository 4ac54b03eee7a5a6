#!lua flags=allow-oom
-- include take/_fence
-- Give entries to other workers: they wait under the consumer "~back", which takers empty first. One that had begun to run waits for its
-- next attempt, since two runs with one number can't be told apart; its note says how often that happened, since no worker died of it.
-- KEYS: 1 request stream, 2 fence, 3.. the note of each entry that had begun to run
-- ARGV: 1 consumer, 2 known generation, 3 known counter, 4 wake channel, 5 service, then of each entry: id, number of its attempt, and
--       TTL of its note (ms) if it had begun to run, else "". The id "" stands for what waits for this consumer, which leaves; the number
--       behind it is that of most entries.
-- Returns how many were given back.
local queue, fence, consumer = KEYS[1], KEYS[2], ARGV[1]
local generation, counter = fence_state(fence, consumer)
local unmoved = is_unmoved(generation, counter, ARGV[2], ARGV[3])

local function note_hand_back(note, ttl)
  local known = redis.pcall('GET', note)
  local times, before = (type(known) == 'string' and known or ''):match('^(%d+ %d+ %d+) ?(%d*)$')
  local text = (times or '0 0 0') .. ' ' .. (tonumber(before) or 0) + 1
  if times then redis.call('SET', note, text, 'KEEPTTL') else redis.call('SET', note, text, 'PX', ttl) end
end

-- What waits for this consumer is nothing that it knows, so its fence stays as it is.
local function pass_on(most)
  local waiting = redis.pcall('XPENDING', queue, 'g', '-', '+', most, '~to:' .. consumer)
  if waiting.err or #waiting == 0 then return 0 end
  local ids = {}
  for i, entry in ipairs(waiting) do ids[i] = entry[1] end
  ids[#ids + 1] = 'JUSTID'
  redis.call('XCLAIM', queue, 'g', '~back', 0, unpack(ids))
  return #waiting
end

local given, passed, noted = 0, 0, 2
for i = 6, #ARGV, 3 do
  local id, attempt, ttl = ARGV[i], ARGV[i + 1], ARGV[i + 2]
  if ttl ~= '' then noted = noted + 1 end
  if id == '' then
    passed = passed + pass_on(attempt)
  elseif unmoved or still_owned(queue, consumer, id, attempt, generation == ARGV[2]) then
    if ttl ~= '' then
      note_hand_back(KEYS[noted], ttl)
      attempt = attempt + 1
    end
    redis.call('XCLAIM', queue, 'g', '~back', 0, id, 'RETRYCOUNT', attempt, 'JUSTID')
    given = given + 1
  end
end
if given > 0 then bump_fence(fence, consumer) end
if given + passed > 0 then redis.call('PUBLISH', ARGV[4], 'back ' .. ARGV[5]) end
return given + passed
