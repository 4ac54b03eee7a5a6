-- include _registry
-- Free a self-published name for another owner. ARGV (after the common four): 5 key ("tool/x", "tool-service/x")
-- Returns how many reservations were removed.
local field = ARGV[5]:gsub('^tool%-service/', 's:'):gsub('^tool/', 't:')
return redis.call('HDEL', names, field)
