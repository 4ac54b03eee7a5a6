#!lua flags=allow-oom
-- include streams/_streams
-- Append frames to reply streams, also when the server's memory is full: a stream with a hole can't be mended.
-- KEYS: 1 any key of the namespace, which names the cluster's slot. Reply streams are arguments: who writes them may not read them.
-- ARGV: pairs of reply stream and frames (a JSON list)
-- Returns the index of each pair whose reply stream is gone, or was and is made anew.
local gone = {}
for i = 1, #ARGV, 2 do
  local id, anew = reply(ARGV[i], ARGV[i + 1])
  if id == 'moving' then return try_again() end
  if anew or not id then gone[#gone + 1] = (i + 1) / 2 end
end
return gone
