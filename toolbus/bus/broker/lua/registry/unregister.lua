#!lua flags=allow-oom
-- include finish/_append
-- include registry/_registry
-- Take instances out of the registry at once. Their leases stay, since what they still run is theirs until they leave (retire.lua).
-- KEYS (after the common six): four for each member's service
-- ARGV (after the common four): members of the live set
-- Returns how many are out.
local out = strike_off({unpack(ARGV, 5)})
forget_names()
return #out
