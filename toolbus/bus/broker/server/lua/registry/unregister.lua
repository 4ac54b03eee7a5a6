#!lua flags=allow-oom
-- include streams/_streams
-- include registry/_registry
-- Take instances out of the registry: at once, or those whose lease has ended, or ends later than any can; and forget some names past their
-- cooldown. Without a look at their leases these stay, since what they still run is theirs until they leave (retire.lua).
-- KEYS (after the common six): four for each member's service
-- ARGV (after the common four): members of the live set; then "died" when they do not leave of their own accord, "forgotten" when nobody
--       is to see that their services have gone, or, to look at their leases, "ended", the server's time as the caller expects it (ms),
--       lease (ms), and longest lease that a process can have (ms)
-- Returns how many are out, or -1 when the server's clock is not what was expected.
local looks, word = ARGV[#ARGV - 3] == 'ended', ARGV[#ARGV]
local expected, lease, longest = unpack(ARGV, #ARGV - 2)
if looks and math.abs(now - expected) > lease / 3 then return -1 end

local function is_dead(member)
  local ends = redis.call('ZSCORE', live, member)
  if not ends then return false end
  -- One that never ends was not written by a beat: the living have set theirs right since the clock is what was expected.
  ends = tonumber(ends)
  return not ends or ends < now or ends > now + 2 * longest
end

local members = {}
local last = #ARGV - (looks and 4 or (word == 'died' or word == 'forgotten') and 1 or 0)
for i = 5, last do members[i - 4] = (not looks or is_dead(ARGV[i])) and ARGV[i] end
local out = strike_off(members, not looks and word ~= 'died')
if word == 'forgotten' then
  for _, member in ipairs(members) do went[member:match('^[^/]*')] = false end
end
remember()
if looks and #out > 0 then redis.call('ZREM', live, unpack(out)) end
forget_names()
if looks then keep({services, names, meta, live, changes}) end
return #out
