#!lua flags=allow-oom
-- include _registry
-- Take instances out of the registry at once. Their leases stay, since what they still run is theirs until they leave (retire.lua).
-- ARGV (after the common four): members of the live set
for i = 5, #ARGV do strike_off(ARGV[i]) end
return #ARGV - 4
