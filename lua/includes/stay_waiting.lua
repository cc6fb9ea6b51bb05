-- stay_waiting(active, ids, delayed, suspects, ...): take `ids` out of `active` again, and
-- `suspects` out of `delayed`, that could not leave where they wait, by the command that was
-- refused; it raises.
local function stay_waiting(active, ids, delayed, suspects, ...)
  for i = 1, #ids do
    redis.pcall("LREM", active, 1, ids[i])
  end
  for i = 1, #suspects do
    redis.pcall("ZREM", delayed, suspects[i])
  end
  redis.call(...)
end
