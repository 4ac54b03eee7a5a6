-- The pulse: when the server last heard a beat of any worker, and until when it judges no lease because it had heard none for
-- half a lease: "<last> <quiet until>" (ms). A server that was stopped, cut off or restored makes the living look dead; they need a
-- lease to show that they are not. The server keeps it, so that a worker that has just come knows what those before it went through.
local function read_pulse(key)
  local last, quiet = (redis.call('GET', key) or ''):match('^(%d+) (%d+)$')
  return tonumber(last), tonumber(quiet)
end

local function is_silence(last, now, lease) return not last or now < last or now - last > lease / 2 end
