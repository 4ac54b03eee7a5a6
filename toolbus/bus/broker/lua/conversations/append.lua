-- include conversations/_list
-- Append records to a conversation that this process holds, and drop its oldest ones. Running it again changes nothing.
-- KEYS: 1 the conversation, 2 the conversations of the namespace
-- ARGV: 1 token, 2 lease (ms), 3 TTL (ms), 4 digest of its name, 5 number of the first of these records, 6 number of the first record that
--       is kept, 7 most records, 8.. records
-- Returns {"kept"}, {"lost"} (another process holds it, or it is gone), or {"behind", number of the next record} (earlier ones are missing).
local known = redis.call('HMGET', KEYS[1], 'holder', 'first', 'next')
local first, following, at, kept = tonumber(known[2] or ''), tonumber(known[3] or ''), tonumber(ARGV[5]), tonumber(ARGV[6])
if known[1] ~= ARGV[1] or not first or not following then return {'lost'} end
if at > following then return {'behind', following} end
-- Numbers of another client: dropping what is between them could take forever.
if kept - first > 2 * ARGV[7] then return {'lost'} end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local stamp = string.format('%.0f', now)
for i = 8, #ARGV do
  local number = at + i - 8
  if number >= following then redis.call('HSET', KEYS[1], 'm:' .. string.format('%.0f', number), stamp .. ' ' .. ARGV[i]) end
end
for number = first, kept - 1 do redis.call('HDEL', KEYS[1], 'm:' .. string.format('%.0f', number)) end
redis.call('HSET', KEYS[1], 'first', string.format('%.0f', math.max(first, kept)), 'used', stamp,
  'next', string.format('%.0f', math.max(following, at + #ARGV - 7)), 'until', string.format('%.0f', now + ARGV[2]), 'lease', ARGV[2])
redis.call('PEXPIRE', KEYS[1], math.max(tonumber(ARGV[3]), 2 * ARGV[2]))
list_conversation(KEYS[2], ARGV[4], now, ARGV[3])
return {'kept'}
