-- When an instance's lease ends (ms), nil when it has none; and whether that end is impossible, since it lies further ahead
-- than any beat sets it: it was written before the server's clock was set back, and counts as ended.
local function read_lease(live, fence, service, instance, now)
  local ends = redis.call('ZSCORE', live, service .. '/' .. instance)
  if not ends then return nil end
  local longest = tonumber(redis.call('HGET', fence, 'l:' .. instance) or 0) or 0
  if longest > 0 and tonumber(ends) > now + 2 * longest then return now - 1, true end
  return tonumber(ends), false
end

-- The same; an impossible end is corrected.
local function lease_end_of(live, fence, service, instance, now)
  local ends, impossible = read_lease(live, fence, service, instance, now)
  if impossible then redis.call('ZADD', live, 'XX', ends, service .. '/' .. instance) end
  return ends
end

-- The pulse: when the server last heard a beat of any worker, and until when it judges no lease because it had heard none for
-- half a lease: "<last> <quiet until>" (ms). A server that was stopped, cut off or restored makes the living look dead; they need a
-- lease to show that they are not. The server keeps it, so that a worker that has just come knows what those before it went through.
local function read_pulse(key)
  local last, quiet = (redis.call('GET', key) or ''):match('^(%d+) (%d+)$')
  return tonumber(last), tonumber(quiet)
end

local function is_silence(last, now, lease) return not last or now < last or now - last > lease / 2 end
