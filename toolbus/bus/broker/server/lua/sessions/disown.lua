#!lua flags=allow-oom
-- Give sessions up that have ended: the next call of one may run anywhere.
-- KEYS: owners of sessions, each with its snapshot
-- ARGV: 1 consumer, then of each session what becomes of its state: "closed" (its caller wants it no more, so that its snapshot goes),
--       "lost" (whoever has it next is told) or "kept" (it did not begin here; there may be a snapshot of another worker's)
-- Returns how many were this consumer's.
local given = 0
for i = 1, #KEYS, 2 do
  if redis.call('GET', KEYS[i]) == ARGV[1] then
    local state = ARGV[(i + 1) / 2 + 1]
    if state == 'lost' then
      redis.call('SET', KEYS[i], '~', 'KEEPTTL')
    elseif state == 'closed' then
      redis.call('DEL', KEYS[i], KEYS[i + 1])
    else
      redis.call('DEL', KEYS[i])
    end
    given = given + 1
  end
end
return given
