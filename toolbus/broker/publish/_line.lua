-- The order of sessions: a hash of a queue that has, for each session, the ids of the last calls that were published in it. Whether they
-- have ended is looked up when somebody asks, so that a publication costs nothing more than to read and write the hash once.
local LINE_KEPT, LINE_MOST = 7200000, 16

-- Return what the hash has for some sessions, by session. A key of another type has nothing.
local function read_lines(key, sessions)
  local found = redis.pcall('HMGET', key, unpack(sessions))
  local lines = {}
  for i, session in ipairs(sessions) do lines[session] = not found.err and found[i] or '' end
  return lines
end

-- Return the last call of a line, if there is one. Without its start a pattern is tried at each place of the text, which takes 40 µs.
local function last_of(line) return line:match('^.* (%d+%-%d+)$') or line:match('^%d+%-%d+$') end

-- Return a line with one call more, without the oldest one if it is full.
local function with_one_more(line, id)
  local _, count = line:gsub('%S+', '')
  if count >= LINE_MOST then line = line:match('^%S+ ?(.*)$') end
  return line == '' and id or line .. ' ' .. id
end

-- Write lines. When sessions are new, a few others are looked at, and those that nobody used for long are forgotten.
local function write_lines(key, lines, sessions, now)
  local fields = {}
  for _, session in ipairs(sessions) do
    fields[#fields + 1], fields[#fields + 2] = session, lines[session]
  end
  local new = redis.pcall('HSET', key, unpack(fields))
  if type(new) ~= 'number' or new == 0 then return end
  redis.call('PEXPIRE', key, 2 * LINE_KEPT)
  local some = redis.call('HRANDFIELD', key, 2 * new + 2, 'WITHVALUES')
  for i = 1, #some, 2 do
    local used = tonumber((last_of(some[i + 1]) or '0'):match('^%d+'))
    if used < now - LINE_KEPT then redis.call('HDEL', key, some[i]) end
  end
end
