-- Publish everything of one flush, or repeat the verdicts of a flush that was already published.
-- KEYS: 1 the agent's flush memo, 2.. request streams
-- ARGV: 1 flush number, 2 memo TTL (ms), 3 run id of the server that is to know of work that must not happen twice, or "",
--       then per request: index of its stream in KEYS, bound, timeout (ms), document
-- Returns one string, a word per request: an entry id, "-" (no such stream) or "!<depth>" (full).
local slot = ARGV[1] % 64
local memo = redis.call('HGET', KEYS[1], slot)
if memo then
  local flush, verdicts = memo:match('^(%d+) (.*)$')
  if flush == ARGV[1] then return verdicts end
end

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local depths = {}
local verdicts = {}
for at = 4, #ARGV, 4 do
  local stream = KEYS[tonumber(ARGV[at])]
  local depth = depths[stream] or redis.call('XLEN', stream)
  if depth >= tonumber(ARGV[at + 1]) then
    verdicts[#verdicts + 1] = '!' .. depth
  else
    local deadline = string.format('%.0f', now + ARGV[at + 2])
    local id
    if ARGV[3] == '' then
      id = redis.call('XADD', stream, 'NOMKSTREAM', '*', 'r', ARGV[at + 3], 'd', deadline)
    else
      id = redis.call('XADD', stream, 'NOMKSTREAM', '*', 'r', ARGV[at + 3], 'd', deadline, 's', ARGV[3])
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
