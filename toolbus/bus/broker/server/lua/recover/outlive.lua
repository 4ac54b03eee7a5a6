#!lua flags=no-writes
-- include lease/_lease
-- include streams/_streams
-- Say whether a worker that leaves is the last one of its revision of a service, beside workers of another one.
-- KEYS: 1 request stream, 2 fence, 3 live instances, 4 the service's instances
-- ARGV: 1 consumer, 2 service, 3 digest of its revision, 4 an entry, or ""
-- Returns {1 if it is, newest entry, 1 if everything up to ARGV[4] was delivered and nothing waits for this worker}
local queue, fence, me = KEYS[1], KEYS[2], ARGV[1]
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local alone, others = true, false

for _, name in ipairs(redis.call('HKEYS', KEYS[4])) do
  local instance = name:match('^i:(.*)$')
  if instance and instance ~= me and (read_lease(KEYS[3], fence, ARGV[2], instance, now) or 0) >= now then
    if redis.call('HGET', KEYS[4], name):match('^%d+:(.*)$') == ARGV[3] then alone = false else others = true end
  end
end

local delivered = '0-0'
for _, group in ipairs(redis.call('XINFO', 'GROUPS', queue)) do
  if field(group, 'name') == 'g' then delivered = field(group, 'last-delivered-id') end
end
local waiting = redis.pcall('XPENDING', queue, 'g', '-', '+', 1, '~to:' .. me)
local passed = ARGV[4] ~= '' and not is_beyond(ARGV[4], delivered) and #waiting == 0
return {alone and others and 1 or 0, newest(queue), passed and 1 or 0}
