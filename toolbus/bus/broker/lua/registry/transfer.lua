-- include finish/_append
-- include registry/_registry
-- Free a self-published name for another owner, and with a service's its queue. ARGV (after the common four): 5 key ("tool/x", "tool-service/x")
-- Returns how many reservations of the name were removed.
local service = ARGV[5]:match('^tool%-service/(.*)$')
if not service then return redis.call('HDEL', names, (ARGV[5]:gsub('^tool/', 't:'))) end
local held = redis.call('HEXISTS', names, 's:' .. service)
local freed = {'s:' .. service}
for _, field in ipairs(redis.call('HKEYS', names)) do
  if field:sub(1, 2) == 'q:' then
    local _, held_for = holder(field)
    if held_for == service then freed[#freed + 1] = field end
  end
end
redis.call('HDEL', names, unpack(freed))
return held
