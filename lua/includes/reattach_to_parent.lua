-- reattach_to_parent(key, parent_key, state): make the parent wait again for a child that had
-- finished in `state`. `parent_key` may be false.
local function reattach_to_parent(key, parent_key, state)
  if not parent_key then
    return
  end
  local ended = 0
  if state == "completed" then
    ended = redis.pcall("HDEL", parent_key .. ":processed", key)
  else
    ended = redis.pcall("ZREM", parent_key .. ":unsuccessful", key)
    if ended ~= 1 then
      ended = redis.pcall("HDEL", parent_key .. ":failed", key)
    end
  end
  if ended == 1 then
    redis.pcall("SADD", parent_key .. ":dependencies", key)
  end
end
