#!lua flags=allow-oom
-- include finish/_append
-- include registry/_registry
-- Drop instances whose lease has ended, or ends later than any can, and some names past their cooldown; keep the tables.
-- KEYS (after the common six): four for each member's service
-- ARGV (after the common four): 5 the server's time as the caller expects it (ms), 6 lease (ms), then longest lease that a process can have (ms), then members
--       of the live set whose lease seemed to have ended
-- Returns how many were dropped, or -1 when the server's clock is not what was expected.
if math.abs(now - ARGV[5]) > ARGV[6] / 3 then return -1 end
local function is_dead(member)
  local ends = redis.call('ZSCORE', live, member)
  if not ends then return false end
  -- One that never ends was not written by a beat: the living have set theirs right since the clock is what was expected.
  ends = tonumber(ends)
  return not ends or ends < now or ends > now + 2 * ARGV[7]
end
local dead = {}
for i = 8, #ARGV do dead[i - 7] = is_dead(ARGV[i]) and ARGV[i] end
local out = strike_off(dead)
if #out > 0 then redis.call('ZREM', live, unpack(out)) end
forget_names()
keep({services, names, meta, live, changes})
return #out
