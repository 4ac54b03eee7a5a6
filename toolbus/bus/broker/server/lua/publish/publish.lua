-- include publish/_line
-- Publish everything of one flush, or repeat the verdicts of a flush that was already published.
-- KEYS: 1 the agent's flush memo, 2.. request streams, and the queues' orders of sessions
-- ARGV: 1 flush number, 2 memo TTL (ms), 3 run id of the server that is to know of work that must not happen twice, or "",
--       then per request: index of its stream in KEYS, bound, timeout (ms; with 0 it comes too late), document; the bound of one that keeps its place in its session
--       is followed by " ", the index of the order of sessions in KEYS, " " and the session;
--       at the end, if earlier flushes are still unanswered, the number of the latest of them
-- Returns one string, a word per request: an entry id, "-" (no such stream, or too late) or "!<depth>" (full); or the error NOTYET, when the earlier
-- flush was not carried out: nothing was published.
local slot = ARGV[1] % 64
local earlier = (#ARGV - 3) % 4 == 1 and ARGV[#ARGV]
local memo = redis.call('HMGET', KEYS[1], slot, earlier and earlier % 64 or slot)
if memo[1] then
  local flush, verdicts = memo[1]:match('^(%d+) (.*)$')
  -- Words of another client are no verdicts.
  local _, words = (verdicts or ''):gsub('[%d!-]+', '')
  if flush == ARGV[1] and words == math.floor((#ARGV - 3) / 4) and not verdicts:find('[^%d! -]') then return verdicts end
end
if earlier and tonumber((memo[2] or ''):match('^%d+') or -1) < tonumber(earlier) then
  return redis.error_reply('NOTYET flush ' .. earlier .. ' was not carried out')
end

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local depths = {}
local verdicts = {}

-- The sessions of this flush by the key of their order, and what each had.
local sessions, lines, old = {}, {}, {}
for at = 4, #ARGV - 3, 4 do
  if not tonumber(ARGV[at + 1]) then
    local key, session = ARGV[at + 1]:match('^%d+ (%d+) (%w+)$')
    local found = sessions[key] or {}
    found[#found + 1], sessions[key] = session, found
  end
end
for key, found in pairs(sessions) do
  lines[key] = read_lines(KEYS[tonumber(key)], found)
  old[key] = is_old(lines[key], now)
end

local function add(stream, at, key, session)
  local before = lines[key] and last_of(lines[key][session])
  local fields = {'r', ARGV[at + 3], 'd', string.format('%.0f', now + ARGV[at + 2])}
  if ARGV[3] ~= '' then
    fields[#fields + 1], fields[#fields + 2] = 's', ARGV[3]
  end
  if before then
    fields[#fields + 1], fields[#fields + 2] = 'p', before
  end
  return redis.pcall('XADD', stream, 'NOMKSTREAM', '*', unpack(fields))
end

for at = 4, #ARGV - 3, 4 do
  local stream = KEYS[tonumber(ARGV[at])]
  local bound, key, session = tonumber(ARGV[at + 1]), nil, nil
  if not bound then
    bound, key, session = ARGV[at + 1]:match('^(%d+) (%d+) (%w+)$')
    bound = tonumber(bound)
  end
  local depth = depths[stream] or redis.pcall('XLEN', stream)
  if type(depth) == 'table' and not depth.err:find('WRONGTYPE', 1, true) then return redis.error_reply(depth.err) end
  if type(depth) == 'table' or tonumber(ARGV[at + 2]) <= 0 then
    -- It is no stream, or its caller's time was up before it came here: that concerns its own requests alone.
    verdicts[#verdicts + 1] = '-'
  elseif depth >= bound then
    verdicts[#verdicts + 1] = '!' .. depth
  else
    local id
    if ARGV[3] == '' and not key then
      local deadline = string.format('%.0f', now + ARGV[at + 2])
      id = redis.pcall('XADD', stream, 'NOMKSTREAM', '*', 'r', ARGV[at + 3], 'd', deadline)
    else
      id = add(stream, at, key, session)
    end
    if type(id) == 'table' then
      -- One whose ids are used up takes nothing more; its workers make it anew.
      if not id.err:find('exhausted', 1, true) then return redis.error_reply(id.err) end
      id = false
    end
    if id then depth = depth + 1 end
    if id and key then lines[key][session] = with_one_more(lines[key][session], id) end
    verdicts[#verdicts + 1] = id or '-'
  end
  depths[stream] = depth
end

for key, found in pairs(sessions) do write_lines(KEYS[tonumber(key)], lines[key], found, now, old[key]) end

local answer = table.concat(verdicts, ' ')
local new = redis.call('HSET', KEYS[1], slot, ARGV[1] .. ' ' .. answer)
if new == 1 or slot % 16 == 0 then redis.call('PEXPIRE', KEYS[1], ARGV[2]) end
return answer
