#!lua flags=allow-oom
-- include take/_fence
-- include lease/_lease
-- Let an entry wait, under the consumer "~to:<instance>", for a live worker that serves the revision which it was made for.
-- KEYS: 1 request stream, 2 fence, 3 live instances, 4 the service's instances
-- ARGV: 1 consumer, 2 service, 3 known generation, 4 wake channel, 5 id, 6 number of its attempt, 7 digest of the revision
-- Returns 1 if it is this consumer's no longer, 0 if no such worker is registered.
local queue, fence, me, id = KEYS[1], KEYS[2], ARGV[1], ARGV[5]
local generation = redis.call('HGET', fence, 'generation') or ''
if not still_owned(queue, me, id, ARGV[6], generation == ARGV[3]) then return 1 end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

local found = {}
for _, field in ipairs(redis.call('HKEYS', KEYS[4])) do
  local instance = field:match('^i:(.*)$')
  if instance and instance ~= me then found[#found + 1] = instance end
end
-- Beginning anywhere shares the entries among them.
local from = time[2] % math.max(1, #found)
for i = 1, #found do
  local instance = found[(from + i) % #found + 1]
  local digest = redis.call('HGET', KEYS[4], 'i:' .. instance):match('^%d+:(.*)$')
  if digest == ARGV[7] and (lease_end_of(KEYS[3], fence, ARGV[2], instance, now) or 0) >= now then
    redis.call('XCLAIM', queue, 'g', '~to:' .. instance, 0, id, 'RETRYCOUNT', ARGV[6], 'JUSTID')
    bump_fence(fence, me)
    redis.call('PUBLISH', ARGV[4], 'to ' .. instance .. ' ' .. ARGV[2])
    return 1
  end
end
return 0
