-- While a cluster moves the slot, a key that is not here may be at the next node, and a command that needs it fails. Keys in KEYS are all
-- here when a script begins. One whose name only the script learns is read by pcall before anything changes; so answers this.
local function is_elsewhere(answer)
  return type(answer) == 'table' and answer.err ~= nil and answer.err:find('non local', 1, true) ~= nil
end

local function try_again() return redis.error_reply('TRYAGAIN the slot is being moved') end
