--- @include "find_parent"
--- @include "release_parent"

-- tell_parent_completed(key, parent_key, value, now): give a child's result to its parent,
-- and let the parent run if that was the last it waited for.
local function tell_parent_completed(key, parent_key, value, now)
  local dependencies = parent_key .. ":dependencies"
  if redis.pcall("SREM", dependencies, key) ~= 1 then -- or it is out of reach, in another slot
    return
  end
  redis.call("HSET", parent_key .. ":processed", key, value)
  if redis.call("SCARD", dependencies) > 0 then
    return
  end
  local parent = find_parent(key, parent_key)
  if redis.call("ZSCORE", parent.base .. "waiting-children", parent.id) then
    release_parent(parent_key, parent.base, parent.id, now)
  end
end
