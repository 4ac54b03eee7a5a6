-- include conversations/_list
-- Let one process continue a conversation, until it lets go or its lease ends. Running it again changes nothing.
-- KEYS: 1 the conversation, 2 the conversations of the namespace
-- ARGV: 1 token, 2 lease (ms), 3 TTL (ms), 4 its name: ["<user>","<id>"], 5 digest of the name, 6 most conversations that are listed
-- Returns {"yours", token of the first process that held it, number of the first record, number of the next one, now (ms)},
-- {"held", end of the lease (ms), milliseconds until then}, or {"damaged"}: nothing of toolbus writes what stands there.
local token, lease = ARGV[1], tonumber(ARGV[2])
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local known = redis.pcall('HMGET', KEYS[1], 'holder', 'until', 'lease', 'born', 'first', 'next', 'name')
if known.err then
  if known.err:find('WRONGTYPE', 1, true) then return {'damaged'} end
  return redis.error_reply(known.err)
end

local function whole(text)
  local number = tonumber(text or '')
  return number and number >= 0 and number < 2 ^ 53 and number == math.floor(number) and number or nil
end

local born, first, following = known[4], 0, 0
if born then
  first, following = whole(known[5]), whole(known[6])
  if not (first and following and first <= following and #born <= 64 and known[7] == ARGV[4]) then return {'damaged'} end
elseif redis.call('EXISTS', KEYS[1]) == 1 then
  return {'damaged'}
end
-- A lease that ends further ahead than it is long was set before the clock was set back, or by another client.
local ends, length = whole(known[2]), whole(known[3])
if known[1] and known[1] ~= token and ends and length and now < ends and ends <= now + length then
  return {'held', string.format('%.0f', ends), ends - now}
end
born = born or token
redis.call('HSET', KEYS[1], 'holder', token, 'until', string.format('%.0f', now + lease), 'lease', lease, 'born', born,
  'first', string.format('%.0f', first), 'next', string.format('%.0f', following), 'name', ARGV[4], 'used', string.format('%.0f', now))
redis.call('PEXPIRE', KEYS[1], math.max(tonumber(ARGV[3]), 2 * lease))
list_conversation(KEYS[2], ARGV[5], now, ARGV[3])
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', now)
redis.call('ZREMRANGEBYRANK', KEYS[2], 0, -(ARGV[6] + 1))
return {'yours', born, first, following, now}
