-- The order of sessions: a hash of a queue that has, for each session, the ids of the last calls that were published in it. Whether they
-- have ended is looked up when somebody asks, so that a publication costs nothing more than to read and write the hash once.
-- An id has 41 characters at most; whatever stands before the last 16 ids is nothing of ours.
local LINE_KEPT, LINE_MOST, LINE_WINDOW = 7200000, 16, 600000
local LINE_BYTES = LINE_MOST * 42

-- Return what the hash has for some sessions, by session. A key of another type has nothing.
local function read_lines(key, sessions)
  local found = redis.pcall('HMGET', key, unpack(sessions))
  local lines = {}
  for i, session in ipairs(sessions) do lines[session] = not found.err and found[i] and found[i]:sub(-LINE_BYTES) or '' end
  return lines
end

-- Return the last call of a line, if there is one. Without its start a pattern is tried at each place of the text, which takes 40 µs.
local function last_of(line) return line:match('^.* (%d+%-%d+)$') or line:match('^%d+%-%d+$') end

-- Return the milliseconds of the last call of a line.
local function used_at(line) return tonumber((last_of(line) or '0'):match('^%d+')) end

-- Return whether one of these lines was used last in another stretch of ten minutes: then the hash is to live on.
local function is_old(lines, now)
  for _, line in pairs(lines) do
    if math.floor(used_at(line) / LINE_WINDOW) ~= math.floor(now / LINE_WINDOW) then return true end
  end
  return false
end

-- Return a line with one call more, without its oldest ones if it is full.
local function with_one_more(line, id)
  local _, count = line:gsub('%S+', '')
  while count >= LINE_MOST do
    line, count = line:match('^%s*%S+%s*(.*)$'), count - 1
  end
  return line == '' and id or line .. ' ' .. id
end

-- Write lines, also over a key of another type. When sessions are new, a few others are looked at, and those that nobody used for long are
-- forgotten.
local function write_lines(key, lines, sessions, now, old)
  local fields = {}
  for _, session in ipairs(sessions) do
    fields[#fields + 1], fields[#fields + 2] = session, lines[session]
  end
  local new = redis.pcall('HSET', key, unpack(fields))
  if type(new) ~= 'number' and new.err:find('WRONGTYPE', 1, true) then
    redis.call('DEL', key)
    new = redis.pcall('HSET', key, unpack(fields))
  end
  if type(new) ~= 'number' then return end
  if new > 0 or old then redis.call('PEXPIRE', key, 2 * LINE_KEPT) end
  if new == 0 then return end
  local some = redis.call('HRANDFIELD', key, 2 * new + 2, 'WITHVALUES')
  for i = 1, #some, 2 do
    if used_at(some[i + 1]) < now - LINE_KEPT then redis.call('HDEL', key, some[i]) end
  end
end
