-- include streams/_streams
-- include publish/_line
-- Publish a call that carries an idempotency key, or join the one that does already. Running it again changes nothing.
-- KEYS: 1 record of the key, 2 request stream, 3 reply stream of this call, 4 the queue's order of sessions if the call keeps its place in its session
-- ARGV: 1 call id, 2 digest of the arguments and session, with a space and the one of earlier releases if that is another, 3 agent, 4 bound, 5 timeout (ms; with 0 it comes too late to be published), 6 document, 7 retention (ms),
--       8 run id of the server that is to know of work that must not happen twice, or "", 9 key prefix, 10 wake channel, 11 session, with KEYS[4]
-- Returns {"queued", entry}, {"joined", entry, id of the call that runs}, {"conflict"}, {"full", depth} or {"absent"}; the entry is 0-1, which
-- none has, when the call has ended
local call, agent = ARGV[1], ARGV[3]
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local deadline, kept = string.format('%.0f', now + ARGV[5]), ARGV[5] + ARGV[7]
local digest, former = ARGV[2]:match('^(%S+) ?(%S*)$')
local known = redis.call('HMGET', KEYS[1], 'id', 'digest', 'entry', 'deadline', 'digests')
-- This very call was published before, its answer was lost, and its failure has freed the key since: its caller reads how it ended.
if known[1] ~= call and redis.call('EXISTS', KEYS[3]) == 1 then return {'joined', '0-1', call} end
local answered = known[1] and redis.pcall('EXISTS', ARGV[9] .. 'call:' .. known[1])
if is_elsewhere(answered) then return try_again() end
if answered == 1 then
  -- Earlier releases compare and write the field digest alone.
  if known[2] ~= digest and known[2] ~= former and known[5] ~= digest .. ' ' .. (known[2] or '') then return {'conflict'} end
  redis.call('HSET', KEYS[1], 'c:' .. call, agent)
  -- One that has more time gives it to the call, if that has not ended.
  if ARGV[10] and (tonumber(known[4] or '') or now) < tonumber(deadline) and #redis.call('XRANGE', KEYS[2], known[3], known[3]) > 0 then
    redis.call('HSET', KEYS[1], 'deadline', deadline)
    for _, key in ipairs({KEYS[1], ARGV[9] .. 'call:' .. known[1]}) do
      if redis.call('PTTL', key) < kept then redis.call('PEXPIRE', key, kept) end
    end
    redis.call('PUBLISH', ARGV[10], 'extend ' .. known[1] .. ' ' .. deadline)
  end
  return {'joined', known[3], known[1]}
end

if tonumber(ARGV[5]) <= 0 then return {'absent'} end
local depth = redis.call('XLEN', KEYS[2])
if depth >= tonumber(ARGV[4]) then return {'full', depth} end
local fields = {'r', ARGV[6], 'd', deadline}
if ARGV[8] ~= '' then
  fields[5], fields[6] = 's', ARGV[8]
end
local lines = KEYS[4] and read_lines(KEYS[4], {ARGV[11]})
local before = lines and last_of(lines[ARGV[11]])
if before then
  fields[#fields + 1], fields[#fields + 2] = 'p', before
end
local entry = redis.call('XADD', KEYS[2], 'NOMKSTREAM', '*', unpack(fields))
if not entry then return {'absent'} end
if lines then
  local old = is_old(lines, now)
  lines[ARGV[11]] = with_one_more(lines[ARGV[11]], entry)
  write_lines(KEYS[4], lines, {ARGV[11]}, now, old)
end
-- A record whose call is gone is overwritten, and never gone in between: where a cluster moves the slot, it could not be made again.
local known_fields = redis.call('HKEYS', KEYS[1])
redis.call('HSET', KEYS[1], 'id', call, 'digest', former ~= '' and former or digest, 'digests', ARGV[2], 'entry', entry, 'deadline', deadline, 'c:' .. call, agent)
for _, field in ipairs(known_fields) do
  if field:sub(1, 2) == 'c:' and field ~= 'c:' .. call then redis.call('HDEL', KEYS[1], field) end
end
redis.call('PEXPIRE', KEYS[1], kept)
redis.call('XADD', KEYS[3], '*', 'o', '1')
redis.call('PEXPIRE', KEYS[3], kept)
return {'queued', entry}
