-- undo_add(prefix, id, sets, list): remove a new job that was refused halfway, from the sets and
-- the list where it may be.
local function undo_add(prefix, id, sets, list)
  local key = prefix .. id
  for i = 1, #sets do
    redis.pcall("ZREM", sets[i], id)
  end
  redis.pcall("LREM", list, 0, id)
  local parent_key = redis.pcall("HGET", key, "parentKey")
  if type(parent_key) == "string" then
    redis.pcall("SREM", parent_key .. ":dependencies", key)
  end
  redis.pcall("DEL", key)
end
