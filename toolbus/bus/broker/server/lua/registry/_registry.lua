-- The common KEYS of scripts of the registry: 1 services, 2 names, 3 meta, 4 items, 5 live, 6 log, and from 7 four for each service
-- that they are about: its instances, request stream, fence and cancelled calls
-- Their common ARGV: 1 key prefix, 2 unique token, 3 TTL of the tables (ms), 4 cooldown of a name (ms)
local services, names, meta, items, live, changes = unpack(KEYS)
local prefix, token, ttl, cooldown = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local written, touched = 0, 0
-- Of the services that this script looked at: a line for people about one without workers, false for one that needs none.
local went = {}
-- How long people see such a service (ms), most of them, and most bytes of a line.
local SEEN, MOST_SEEN, MOST_LINE = 86400000, 500, 1024

-- Tables live as long as a process uses them. One from which the last field was taken is gone, and where a cluster moves the slot that is
-- an error.
local function keep(tables)
  for _, key in ipairs(tables) do redis.pcall('PEXPIRE', key, ttl) end
end

-- Each change names the token of the one before it, so that a reader notices a gap.
local function record(op, key, document)
  local before = redis.call('HGET', meta, 'token') or ''
  written = written + 1
  local mine = token .. '.' .. written
  append(changes, 'MAXLEN', '~', 2048, '*', 'op', op, 'key', key, 'doc', document, 'token', mine, 'prev', before)
  redis.call('HSET', meta, 'token', mine)
  keep({services, names, meta, live, changes})
end

-- A name's record is owner, service, and the end of its cooldown (0 while it is held).
local function read_holder(found)
  local owner, service, free_at = (found or ''):match('^(.-)\n(.-)\n(%d+)$')
  return owner, service, tonumber(free_at)
end

local function holder(field) return read_holder(redis.call('HGET', names, field)) end

-- The tables of services, given from a position in KEYS on, that do not exist.
local function missing_tables(first)
  local missing = {}
  for i = first, #KEYS do missing[KEYS[i]] = redis.call('EXISTS', KEYS[i]) == 0 end
  return missing
end

-- A service that is gone gives its names up, so one that never was would hold them for ever.
local function is_nowhere(service, missing)
  return missing[prefix .. 'reg:s:' .. service] and redis.call('HEXISTS', services, service) == 0
end

local function write_name(field, owner, service, free_at)
  redis.call('HSET', names, field, owner .. '\n' .. service .. '\n' .. string.format('%.0f', free_at))
  touched = touched + 1
end

local function hold(field, owner, service) write_name(field, owner, service, 0) end

local function release(field, owner, service)
  local _, held_for, free_at = holder(field)
  if held_for == service and free_at == 0 then write_name(field, owner, service, now + cooldown) end
end

-- Forget names that are past their cooldown, and let it begin for those of services that are not listed. Looking at four names for each
-- that was written keeps the table within twice what is held or cools down.
local function forget_names()
  local found = redis.pcall('HRANDFIELD', names, 64 + 4 * touched, 'WITHVALUES')
  for i = 1, found.err and 0 or #found, 2 do
    local owner, service, free_at = read_holder(found[i + 1])
    if not owner or (free_at > 0 and free_at < now) then
      redis.call('HDEL', names, found[i])
    elseif free_at == 0 and service ~= '' and redis.call('HEXISTS', services, service) == 0 then
      release(found[i], owner, service)
    end
  end
end

-- The keys of the service that stands at a position among those that the script is about.
local function keys_of(position)
  local first = 3 + 4 * position
  return {instances = KEYS[first], queue = KEYS[first + 1], fence = KEYS[first + 2], cancelled = KEYS[first + 3]}
end

-- An empty queue counts as none, as it does for those who look up a service's keys.
local function queue_of(found, service) return found and found ~= '' and found or service end

-- Keep in mind which services are without workers, the newest ones last, since requests may wait for them.
local function remember()
  if not next(went) then return end
  local before, lines = redis.call('HGET', meta, 'gone') or '', {}
  for line in before:gmatch('[^\n]+') do
    local service, at = line:match('^(%S+) %S+ (%d+) [01] ')
    if at and #at <= 15 and math.abs(now - at) < SEEN and went[service] == nil then lines[#lines + 1] = line end
  end
  for _, line in pairs(went) do
    if line and #line <= MOST_LINE and not line:find('%c') then lines[#lines + 1] = line end
  end
  local after = table.concat(lines, '\n', math.max(1, #lines - MOST_SEEN + 1))
  if after ~= '' then
    redis.call('HSET', meta, 'gone', after)
  elseif before ~= '' then
    redis.call('HDEL', meta, 'gone')
  end
end

-- Make the newest start's publication the current one; forget publications that no worker serves any more. A service whose last worker
-- has gone either left, or was lost.
local function settle(service, own, left)
  local key = own.instances
  local all = redis.call('HGETALL', key)
  local fields, served, newest, current = {}, {}, -1, nil
  for i = 1, #all, 2 do fields[all[i]] = all[i + 1] end
  for field, value in pairs(fields) do
    if field:sub(1, 2) == 'i:' then
      local start, digest = value:match('^(%d+):(.*)$')
      if digest and fields['d:' .. digest] and redis.call('ZSCORE', live, service .. '/' .. field:sub(3)) then
        served[digest] = true
        if tonumber(start) > newest then newest, current = tonumber(start), digest end
      else
        -- Without a lease nothing would ever sweep it out. Its worker, if there is one, registers again when it next looks.
        redis.call('HDEL', key, field)
        fields[field] = nil
      end
    end
  end
  for field in pairs(fields) do
    if field:sub(1, 2) == 'o:' and not fields['i:' .. field:sub(3)] then redis.call('HDEL', key, field) end
  end

  -- A service that scales to zero stays listed, and keeps its names, while no worker runs.
  local sleeps = fields.scale_to_zero == '1'
  local kept = {}
  for digest in pairs(served) do
    for name in (fields['n:' .. digest] or ''):gmatch('[^\n]+') do kept[name] = true end
  end
  for field, value in pairs(fields) do
    local digest = field:match('^[nd]:(.*)$')
    if digest and not served[digest] and (current or not sleeps) then
      for name in (field:sub(1, 1) == 'n' and value or ''):gmatch('[^\n]+') do
        if not kept[name] then release('t:' .. name, fields.owner or '', service) end
      end
      redis.call('HDEL', key, 'n:' .. digest, 'd:' .. digest)
    end
  end

  local before = redis.call('HGET', services, service)
  went[service] = false
  if current then
    local value = '+' .. fields['d:' .. current]
    redis.call('HSET', key, 'current', current)
    redis.call('PEXPIRE', key, ttl)
    if before ~= value then
      redis.call('HSET', services, service, value)
      record('up', service, fields['d:' .. current])
    end
    return
  end

  if sleeps and fields['d:' .. (fields.current or '')] then
    local value = '-' .. fields['d:' .. fields.current]
    if before ~= value then
      redis.call('HSET', services, service, value)
      record('down', service, fields['d:' .. fields.current])
    end
    return
  end
  local owner, queue = fields.owner or '', queue_of(fields.queue, service)
  went[service] = string.format('%s %s %.0f %s %s', service, queue, now, left and '1' or '0', owner)
  release('s:' .. service, owner, service)
  release('q:' .. queue, owner, service)
  redis.call('DEL', key)
  if redis.call('HDEL', services, service) == 1 then record('gone', service, '') end
  if redis.call('XLEN', own.queue) == 0 then
    redis.call('DEL', own.queue, own.fence, own.cancelled)
  else
    -- Draining workers keep it alive with their beats; a request that no worker takes within an hour is past its use.
    redis.call('PEXPIRE', own.queue, 3600000)
    redis.call('PEXPIRE', own.fence, 3600000)
  end
end

-- Take instances out that left, or were lost: one for each service of KEYS, as service/instance, or false for none. Returns those that are
-- out.
local function strike_off(members, left)
  local found, out = {}, {}
  for position, member in ipairs(members) do
    local service, instance = (member or ''):match('^(.-)/(.*)$')
    if member and not service then
      -- No instance has such a name.
      out[#out + 1] = member
    elseif member then
      local own, field = keys_of(position), 'i:' .. instance
      local queue = queue_of(redis.call('HGET', own.instances, 'queue'), service)
      -- A service that takes from another stream since its keys were looked up is left for the next time.
      if prefix .. 'q:' .. queue == own.queue then
        out[#out + 1] = member
        if redis.call('HEXISTS', own.instances, field) == 1 then found[#found + 1] = {service, own, field} end
      end
    end
  end
  -- The instances of one service go together, since with its last one its keys go.
  local settled = {}
  for _, each in ipairs(found) do redis.call('HDEL', each[2].instances, each[3], (each[3]:gsub('^i:', 'o:'))) end
  for _, each in ipairs(found) do
    if not settled[each[1]] then settle(each[1], each[2], left) end
    settled[each[1]] = true
  end
  return out
end
