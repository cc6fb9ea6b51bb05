--- @include "awaits"
--- @include "find_parent"
--- @include "release_parent"

-- tell_parent_completed(key, parent_key, value, now): give a child's result to its parent,
-- and let the parent run if that was the last it waited for. The parent waits for the child until
-- all of it is done: if something is refused in between, it can be done again.
local function tell_parent_completed(key, parent_key, value, now)
  local dependencies = parent_key .. ":dependencies"
  if not awaits(parent_key, key) then
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
