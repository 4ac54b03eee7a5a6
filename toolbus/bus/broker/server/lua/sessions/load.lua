-- Read the snapshot of a session, if it is not larger than any that a worker writes.
-- KEYS: 1 the snapshot
-- ARGV: 1 most bytes of the document, 2 most bytes of the token and of the call's id
-- Returns {token, call, document}, {} when there is none, or {why it can't be used}.
local most = {t = tonumber(ARGV[2]), c = tonumber(ARGV[2]), d = tonumber(ARGV[1])}
for field, limit in pairs(most) do
  local size = redis.pcall('HSTRLEN', KEYS[1], field)
  if type(size) == 'table' then return {size.err} end
  if size > limit then return {string.format('its field %s has %.0f bytes, and may have %.0f', field, size, limit)} end
end
local found = redis.call('HMGET', KEYS[1], 't', 'c', 'd')
if not found[1] or not found[3] then return {} end
return {found[1], found[2] or '', found[3]}
