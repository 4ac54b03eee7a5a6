-- Publish everything of one flush, or repeat the verdicts of a flush that was already published.
-- KEYS: 1 the agent's flush memo, 2.. request streams
-- ARGV: 1 flush number, 2 memo TTL (ms), 3 run id of the server that is to know of work that must not happen twice, or "",
--       then per request: index of its stream in KEYS, bound, timeout (ms), document;
--       at the end, if earlier flushes are still unanswered, the number of the latest of them
-- Returns one string, a word per request: an entry id, "-" (no such stream) or "!<depth>" (full); or the error NOTYET, when the earlier
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
for at = 4, #ARGV - 3, 4 do
  local stream = KEYS[tonumber(ARGV[at])]
  local depth = depths[stream] or redis.pcall('XLEN', stream)
  if type(depth) == 'table' and not depth.err:find('WRONGTYPE', 1, true) then return redis.error_reply(depth.err) end
  if type(depth) == 'table' then
    -- It is no stream: that concerns its own requests alone.
    verdicts[#verdicts + 1] = '-'
  elseif depth >= tonumber(ARGV[at + 1]) then
    verdicts[#verdicts + 1] = '!' .. depth
  else
    local deadline = string.format('%.0f', now + ARGV[at + 2])
    local id
    if ARGV[3] == '' then
      id = redis.pcall('XADD', stream, 'NOMKSTREAM', '*', 'r', ARGV[at + 3], 'd', deadline)
    else
      id = redis.pcall('XADD', stream, 'NOMKSTREAM', '*', 'r', ARGV[at + 3], 'd', deadline, 's', ARGV[3])
    end
    if type(id) == 'table' then
      -- One whose ids are used up takes nothing more; its workers make it anew.
      if not id.err:find('exhausted', 1, true) then return redis.error_reply(id.err) end
      id = false
    end
    if id then depth = depth + 1 end
    verdicts[#verdicts + 1] = id or '-'
  end
  depths[stream] = depth
end

local answer = table.concat(verdicts, ' ')
local new = redis.call('HSET', KEYS[1], slot, ARGV[1] .. ' ' .. answer)
if new == 1 or slot % 16 == 0 then redis.call('PEXPIRE', KEYS[1], ARGV[2]) end
return answer
