-- Append an entry to a reply stream: its id, and true when the stream was missing; nil when there is none; and "moving" while a cluster
-- moves the slot, when the whole script is to be run again (callers drop frames that they already have). Its field is "f" for frames.
-- A stream may be missing because the server's clock was set forward. So its frames make it anew for a moment, in which a reader that
-- lives takes it over.
local function reply(stream, payload, field)
  local id = redis.pcall('XADD', stream, 'NOMKSTREAM', '*', field or 'f', payload)
  if type(id) == 'table' then return is_elsewhere(id) and 'moving' or nil end
  if id or field then return id or nil end
  redis.call('XADD', stream, '*', 'o', 'lost')
  id = redis.call('XADD', stream, '*', 'f', payload)
  redis.call('PEXPIRE', stream, 5000)
  return id, true
end
