-- include streams/_streams
-- include registry/_registry
-- Put, change or delete documents, all of them or none; or free the name of one that a service publishes, and with a service's its queue.
-- KEYS (after the common six): the tables in which the documents stand, then tables of services for which a name may be held that do not
--       exist any more
-- ARGV (after the common four): 5 owner of the keys; "" for the operator, who takes no name that somebody holds; 6 number of tables, then of
--       each document: the position of its table among those, its key ("tool/x", "tool-service/x", "toolkit/x", "pin/x"), what it is expected
--       to be ("=" and the document, "" for none, "*" for whatever it is, "!" to free its name instead), and what it becomes or "" to
--       delete it
-- Returns {"ok", how many changed}, {"changed", key of the first that is not what was expected} or {"refused", owner of a name}
local owner, missing = ARGV[5], missing_tables(7 + ARGV[6])

-- The records of names that go when a name is freed.
local function freed_with(field)
  local service = field:match('^s:(.*)$')
  local found = {field}
  for _, other in ipairs(service and redis.call('HKEYS', names) or {}) do
    local _, held_for = holder(other)
    if other:sub(1, 2) == 'q:' and held_for == service then found[#found + 1] = other end
  end
  return found
end

local documents = {}
for i = 7, #ARGV, 4 do
  local key, expected, becomes = ARGV[i + 1], ARGV[i + 2], ARGV[i + 3]
  local field = key:gsub('^tool%-service/', 's:'):gsub('^tool/', 't:'):gsub('^toolkit/', 'k:')
  local each = {table = KEYS[6 + ARGV[i]], key = key, field = field, becomes = becomes}
  local current = redis.call('HGET', each.table, key) or ''
  -- One that is as wanted was written by this very change, whose answer was lost.
  each.differs = expected == '*' or current ~= becomes
  if expected == '!' then
    each.differs, each.frees = false, freed_with(field)
  elseif expected ~= '*' then
    if each.differs and current ~= expected:sub(2) then return {'changed', key} end
  else
    local holds, held_for, free_at = holder(field)
    if owner ~= '' then
      if holds and holds ~= owner then return {'refused', holds} end
    elseif becomes ~= '' and holds and (now < free_at or (free_at == 0 and not is_nowhere(held_for, missing))) then
      return {'refused', holds}
    end
    each.owned = owner ~= '' and becomes ~= ''
    each.frees = becomes == '' and field:sub(1, 2) == 'k:' and {field}
  end
  documents[#documents + 1] = each
end

local changed = 0
for _, each in ipairs(documents) do
  local written = each.differs
  if each.owned then hold(each.field, owner, '') end
  if written and each.becomes ~= '' then
    redis.call('HSET', each.table, each.key, each.becomes)
  elseif written then
    written = redis.call('HDEL', each.table, each.key) == 1
  end
  if written then record('item', each.key, each.becomes) end
  if each.frees then
    written = redis.call('HEXISTS', names, each.field) == 1 or written
    redis.call('HDEL', names, unpack(each.frees))
  end
  if written then changed = changed + 1 end
end
return {'ok', changed}
