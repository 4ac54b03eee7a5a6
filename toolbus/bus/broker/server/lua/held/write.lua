-- Change a held document: a hash that one process at a time may write, until its lease ends. It has a token, by which it knows that
-- process, values, a log of numbered records, and sets that list it.
-- KEYS: 1 the document, 2.. sets that list it
-- ARGV: 1 to 3 names of fields: of the token, of the log's next number, and what the names of records begin with; 4 token;
--       5 who changes it: "holder" (who has that token), "next" (who takes it when nobody holds it; it begins if it is not there),
--       "new" (who begins it) or "anyone"; 6 lease from now on (ms), 0 ends it, "" leaves it; 7 TTL (ms), 0 deletes it, "" leaves it;
--       8 member of the sets, 9 most members that they may have before "new", 10 channel, 11 message or "";
--       12 number of the first of the records that follow, 13 number of the first that is kept, 14 most records,
--       15 "1" if numbers may be left out, 16 "1" if the time (ms) and a space stand before each record; then groups, each behind its
--       length: fields with what they are expected to be ("" for none), fields with what they become, fields with what they begin as,
--       fields that become the time (ms), fields that are told, and of each set its score from now on (ms, or "-" to take the document
--       off), how long ago older members may be scored (ms), and most members; then records
-- Returns {word, now (ms), number of the first record, number of the next one, {what the told fields are now}}, with one of the words
-- "kept", "lost" (another process holds it), "other" (a field is not as expected, or "new" is not), "gone" (it is not there),
-- "held" (instead of the first number: the end of the lease), "full" (instead of the first number: how many there are),
-- "behind" (records before these are missing) or "damaged". Running it again changes nothing.
local document, holder_field, next_field, prefix = KEYS[1], ARGV[1], ARGV[2], ARGV[3]
local token, who, lease, ttl, member = ARGV[4], ARGV[5], tonumber(ARGV[6]), tonumber(ARGV[7]), ARGV[8]
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local position = 17
local function group()
  local count = tonumber(ARGV[position])
  position = position + count + 1
  return {unpack(ARGV, position - count, position - 1)}
end
local expected, values, begins, stamps, told, lists = group(), group(), group(), group(), group(), group()
local records, at, keep, most = #ARGV - position + 1, tonumber(ARGV[12]), tonumber(ARGV[13]), tonumber(ARGV[14])

local function decimal(number) return string.format('%.0f', number) end
local function whole(text)
  local number = tonumber(text or '')
  return number and number >= 0 and number < 2 ^ 53 and number == math.floor(number) and number or nil
end

local known = redis.pcall('HMGET', document, holder_field, 'until', 'lease', 'first', next_field)
local exists = known.err ~= nil or redis.call('EXISTS', document) == 1
local function answer(word, first, following)
  local found = {}
  for i, field in ipairs(told) do found[i] = exists and not known.err and redis.call('HGET', document, field) end
  return {word, now, first or 0, following or 0, found}
end
local function take_off(word)
  for i = 2, #KEYS do redis.pcall('ZREM', KEYS[i], member) end
  return answer(word)
end

-- Whether it may be changed.
if known.err then
  if not known.err:find('WRONGTYPE', 1, true) then return redis.error_reply(known.err) end
  if ttl ~= 0 then return take_off('damaged') end
  known = {}
end
local mine = known[1] == token and token ~= ''
if who == 'holder' and not mine then return answer(exists and 'lost' or 'gone') end
if not exists and (who == 'anyone' or ttl == 0) then return take_off('gone') end
local first, following = whole(known[4]), whole(known[5] or '0')
first = first or (following and not known[4] and math.max(0, following - most))
if ttl ~= 0 and not (first and following and first <= following and following - first <= 2 * most) then return answer('damaged') end
if exists then
  if who == 'new' then return answer('other') end
  -- Who holds it already runs this again.
  for i = 1, who == 'next' and mine and 0 or #expected, 2 do
    if (redis.call('HGET', document, expected[i]) or '') ~= expected[i + 1] then return answer('other', first, following) end
  end
  -- A lease that ends further ahead than it is long was set before the clock was set back, or by another client.
  local ends, length = whole(known[2]), whole(known[3])
  if who == 'next' and not mine and ends and length and now < ends and ends <= now + length then return answer('held', ends) end
elseif who == 'new' and ARGV[9] ~= '' then
  local open = 0
  for i = 2, #KEYS do open = open + redis.call('ZCARD', KEYS[i]) end
  if open >= tonumber(ARGV[9]) then return answer('full', open) end
end
if records > 0 and ARGV[15] ~= '1' and at > following then return answer('behind', first, following) end

-- What it becomes. In this order, since a key that is gone can't be made anew while a cluster moves the slot.
if ttl == 0 then
  redis.call('DEL', document)
  exists = false
else
  local written = {}
  local function put(field, value)
    written[#written + 1] = field
    written[#written + 1] = value
  end
  for i = 1, exists and 0 or #begins, 2 do put(begins[i], begins[i + 1]) end
  for i = 1, #values, 2 do put(values[i], values[i + 1]) end
  for _, field in ipairs(stamps) do put(field, decimal(now)) end
  if who == 'next' then put(holder_field, token) end
  if lease then
    put('until', decimal(now + lease))
    put('lease', decimal(lease))
  end
  for i = 1, records do
    local record = (ARGV[16] == '1' and decimal(now) .. ' ' or '') .. ARGV[position + i - 1]
    if at + i > following then redis.call('HSET', document, prefix .. decimal(at + i - 1), record) end
  end
  following = records > 0 and math.max(following, at + records) or following
  keep = math.min(keep, following)
  for number = first, keep - 1 do redis.call('HDEL', document, prefix .. decimal(number)) end
  if records > 0 or keep > first then
    first = math.max(first, keep)
    put('first', decimal(first))
    put(next_field, decimal(following))
  end
  if #written > 0 then redis.call('HSET', document, unpack(written)) end
  if ttl then redis.call('PEXPIRE', document, ttl) end
  exists = true
end
for i = 1, #lists, 3 do
  local set, score, past, most_members = KEYS[(i + 5) / 3], lists[i], tonumber(lists[i + 1]), tonumber(lists[i + 2])
  if score == '-' then
    redis.pcall('ZREM', set, member)
  else
    local added = redis.pcall('ZADD', set, now + score, member)
    if type(added) == 'table' then
      -- A key of another type is made anew.
      if not added.err:find('WRONGTYPE', 1, true) then return added end
      redis.call('DEL', set)
      redis.call('ZADD', set, now + score, member)
    end
    redis.call('ZREMRANGEBYSCORE', set, '-inf', '(' .. decimal(now - past))
    redis.call('ZREMRANGEBYRANK', set, 0, -(most_members + 1))
    if redis.call('PTTL', set) < ttl then redis.call('PEXPIRE', set, ttl) end
  end
end
if ARGV[11] ~= '' then redis.call('PUBLISH', ARGV[10], ARGV[11]) end
return answer('kept', first, following)
