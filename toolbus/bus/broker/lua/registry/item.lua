-- include finish/_append
-- include registry/_registry
-- Put or delete a document.
-- KEYS (after the common six): the document's table, then tables of services for which the name may be held that do not exist any more
-- ARGV (after the common four): 5 key ("tool/x", "tool-service/x", "toolkit/x", "pin/x"), 6 document or "" to delete, 7 owner of the key or ""
-- Returns {"ok", how many changed} or {"refused", owner}
local documents = KEYS[7]
local field = ARGV[5]:gsub('^tool%-service/', 's:'):gsub('^tool/', 't:'):gsub('^toolkit/', 'k:')
if ARGV[7] ~= '' then
  local mine = holder(field)
  if mine and mine ~= ARGV[7] then return {'refused', mine} end
  if ARGV[6] ~= '' then
    hold(field, ARGV[7], '')
    redis.call('HSET', documents, ARGV[5], ARGV[6])
    record('item', ARGV[5], ARGV[6])
    return {'ok', 1}
  end
end
if ARGV[6] == '' then
  local removed = redis.call('HDEL', documents, ARGV[5])
  local freed = field:sub(1, 2) == 'k:' and redis.call('HDEL', names, field) or 0
  if removed == 1 then record('item', ARGV[5], '') end
  return {'ok', math.max(removed, freed)}
end
local owner, held_for, free_at = holder(field)
local held = owner and free_at == 0 and not is_nowhere(held_for, missing_tables(8))
if held or (owner and now < free_at) then return {'refused', owner} end
redis.call('HSET', documents, ARGV[5], ARGV[6])
record('item', ARGV[5], ARGV[6])
return {'ok', 1}
