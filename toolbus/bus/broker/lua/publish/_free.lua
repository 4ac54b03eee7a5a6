-- Say whether an idempotency key is free again: its record stands for this call, and no other run marked that `once` work began.
local function is_free(record, call, mark, run)
  local began = redis.call('GET', mark)
  return (not began or began == run) and redis.call('HGET', record, 'id') == call
end
