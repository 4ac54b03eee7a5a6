#!lua flags=allow-oom
-- include streams/_streams
-- Make an agent's reply stream, if it is missing, together with its TTL: a connection that is lost between the two would leave it
-- behind for good. One whose ids are used up takes no more entries, and is made anew.
-- KEYS: 1 reply stream
-- ARGV: 1 TTL (ms), 2 id of the entry that the agent read last, if any
-- Returns 1 if it was missing, 2 if it was made anew, 3 if it ends before what the agent read, so that it is another one; else 0
local stream, read = KEYS[1], ARGV[2] or '0-0'
local found, state = redis.call('TYPE', stream).ok, 0
if found == 'stream' then
  local last = newest(stream)
  if is_used_up(last) then
    redis.call('DEL', stream)
    state = 2
  elseif is_beyond(read, last) then
    state = 3
  end
elseif found == 'none' then
  state = 1
end
if state == 1 or state == 2 then redis.call('XADD', stream, '*', 'o', '1') end
redis.call('PEXPIRE', stream, ARGV[1])
return state
