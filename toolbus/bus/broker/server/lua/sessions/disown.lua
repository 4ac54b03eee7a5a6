#!lua flags=allow-oom
-- Give sessions up that have ended: the next call of one starts it anew, anywhere.
-- KEYS: owners of sessions, each with its snapshot
-- ARGV: 1 consumer, then of each session "1" when nobody asked for its end: then whoever has it next is told that its state was lost, and
--       its snapshot stays
-- Returns how many were this consumer's.
local given = 0
for i = 1, #KEYS, 2 do
  if redis.call('GET', KEYS[i]) == ARGV[1] then
    if ARGV[(i + 1) / 2 + 1] == '1' then
      redis.call('SET', KEYS[i], '~', 'KEEPTTL')
    else
      redis.call('DEL', KEYS[i], KEYS[i + 1])
    end
    given = given + 1
  end
end
return given
