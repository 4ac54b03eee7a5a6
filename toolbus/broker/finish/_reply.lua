-- Append an entry to a reply stream: its id; nil when the stream is gone, or is no stream; and "moving" while a cluster
-- moves the slot, when the whole script is to be run again (callers drop frames that they already have). Its field is "f" for frames.
local function reply(stream, payload, field)
  local id = redis.pcall('XADD', stream, 'NOMKSTREAM', '*', field or 'f', payload)
  if type(id) ~= 'table' then return id end
  if is_elsewhere(id) then return 'moving' end
  return nil
end
