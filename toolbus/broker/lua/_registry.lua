-- The registry's tables and its change log.
-- Every registry script has KEYS: 1 services, 2 names, 3 meta, 4 items, 5 live, 6 log
-- and ARGV: 1 key prefix, 2 unique token, 3 TTL of the tables (ms), 4 cooldown of a name (ms)
local services, names, meta, items, live, changes = unpack(KEYS)
local prefix, token, ttl, cooldown = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local written = 0

-- Each change names the token of the one before it, so that a reader notices a gap.
local function record(op, key, document)
  local before = redis.call('HGET', meta, 'token') or ''
  written = written + 1
  local mine = token .. '.' .. written
  redis.call('XADD', changes, 'MAXLEN', '~', 2048, '*', 'op', op, 'key', key, 'doc', document, 'token', mine, 'prev', before)
  redis.call('HSET', meta, 'token', mine)
  for _, key in ipairs({services, names, meta, live, changes}) do redis.call('PEXPIRE', key, ttl) end
end

-- A name's record is owner, service, and the end of its cooldown (0 while it is held).
local function holder(field)
  local found = redis.call('HGET', names, field)
  if not found then return nil end
  local owner, service, free_at = found:match('^(.-)\n(.-)\n(%d+)$')
  return owner, service, tonumber(free_at)
end

local function hold(field, owner, service) redis.call('HSET', names, field, owner .. '\n' .. service .. '\n0') end

local function release(field, owner, service)
  local _, held_for, free_at = holder(field)
  if held_for == service and free_at == 0 then
    redis.call('HSET', names, field, owner .. '\n' .. service .. '\n' .. string.format('%.0f', now + cooldown))
  end
end

local function instances_of(service) return prefix .. 'reg:s:' .. service end

-- Make the newest start's publication the current one; forget publications that nobody serves any more.
local function settle(service)
  local key = instances_of(service)
  local all = redis.call('HGETALL', key)
  local fields, served, newest, current = {}, {}, -1, nil
  for i = 1, #all, 2 do fields[all[i]] = all[i + 1] end
  for field, value in pairs(fields) do
    if field:sub(1, 2) == 'i:' then
      local start, digest = value:match('^(%d+):(.*)$')
      served[digest] = true
      if tonumber(start) > newest then newest, current = tonumber(start), digest end
    end
  end

  -- A service that scales to zero stays listed, and keeps its names, while no worker runs.
  local sleeps = fields.scale_to_zero == '1'
  local kept = {}
  for digest in pairs(served) do
    for name in (fields['n:' .. digest] or ''):gmatch('[^\n]+') do kept[name] = true end
  end
  for field, value in pairs(fields) do
    local digest = field:match('^n:(.*)$')
    if digest and not served[digest] and (current or not sleeps) then
      for name in value:gmatch('[^\n]+') do
        if not kept[name] then release('t:' .. name, fields.owner, service) end
      end
      redis.call('HDEL', key, 'n:' .. digest, 'd:' .. digest)
    end
  end

  local before = redis.call('HGET', services, service)
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

  if sleeps then
    local value = '-' .. fields['d:' .. fields.current]
    if before ~= value then
      redis.call('HSET', services, service, value)
      record('down', service, fields['d:' .. fields.current])
    end
    return
  end
  release('s:' .. service, fields.owner or '', service)
  release('q:' .. (fields.queue or service), fields.owner or '', service)
  redis.call('DEL', key)
  if redis.call('HDEL', services, service) == 1 then record('gone', service, '') end
  local queue = fields.queue or service
  if redis.call('XLEN', prefix .. 'q:' .. queue) == 0 then
    redis.call('DEL', prefix .. 'q:' .. queue, prefix .. 'fence:' .. queue, prefix .. 'cancelled:' .. queue)
  else
    -- Draining workers keep it alive with their beats; what nobody takes within an hour is past its use.
    redis.call('PEXPIRE', prefix .. 'q:' .. queue, 3600000)
    redis.call('PEXPIRE', prefix .. 'fence:' .. queue, 3600000)
  end
end

local function strike_off(member)
  local service, instance = member:match('^(.-)/(.*)$')
  if redis.call('HDEL', instances_of(service), 'i:' .. instance) == 1 then settle(service) end
end
