#!lua flags=allow-oom
-- Write a call's note for its next run, and keep what must outlive its deadline: its handler waits for a confirmation, or it waits for its
-- turn in a session.
-- KEYS: 1 the note, 2.. keys that must outlive the deadline, where they exist
-- ARGV: 1 note: "<deadline> <since> <until>" (ms; the last two 0 when it does not wait now) and the attempts that count
--       against nobody, 2 TTL of the note (ms), 3 TTL of the others (ms)
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
for i = 2, #KEYS do
  local left = redis.call('PTTL', KEYS[i])
  if left > 0 and left < tonumber(ARGV[3]) then redis.call('PEXPIRE', KEYS[i], ARGV[3]) end
end
return redis.status_reply('OK')
