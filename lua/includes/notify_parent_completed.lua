--- @include "find_parent"
--- @include "release_parent"

-- notify_parent_completed(key, parent_key, value, now): store a child's result in its parent, and
-- release the parent if it was the last pending child. The child stays pending until the end, so a
-- refused call can be repeated.
local function notify_parent_completed(key, parent_key, value, now)
  local dependencies = parent_key .. ":dependencies"
  if not is_waiting_for(parent_key, key) then
    return
  end
  redis.call("HSET", parent_key .. ":processed", key, value)
  if redis.call("SCARD", dependencies) == 1 then
    local parent = find_parent(key, parent_key)
    if redis.call("ZSCORE", parent.base .. "waiting-children", parent.id) then
      release_parent(parent_key, parent.base, parent.id, now)
    end
  end
  redis.call("SREM", dependencies, key)
end
