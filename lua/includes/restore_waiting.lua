-- restore_waiting(active, ids, delayed, suspects, ...): remove `ids` from `active` and `suspects`
-- from `delayed`, because they could not leave their waiting place. Then raise, by repeating the
-- refused command.
local function restore_waiting(active, ids, delayed, suspects, ...)
  for i = 1, #ids do
    redis.pcall("LREM", active, 1, ids[i])
  end
  for i = 1, #suspects do
    redis.pcall("ZREM", delayed, suspects[i])
  end
  redis.call(...)
end
