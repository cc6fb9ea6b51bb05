--- @include "find_parent"
--- @include "release_parent"

-- tell_parent_failed(key, parent_key, reason, now): do to a parent what the child's policy
-- says about its failure. Without a policy the parent goes on waiting for the child.
local function tell_parent_failed(key, parent_key, reason, now)
  local parent = find_parent(key, parent_key)
  if not (parent.fpof or parent.cpof or parent.idof or parent.rdof) then
    return
  end
  local dependencies = parent_key .. ":dependencies"
  if redis.pcall("SREM", dependencies, key) ~= 1 then -- or it is out of reach, in another slot
    return
  end
  local base, id = parent.base, parent.id
  local waits = redis.call("ZSCORE", base .. "waiting-children", id)
  if parent.fpof then
    redis.call("ZADD", parent_key .. ":unsuccessful", now, key)
    local doom = "child " .. key .. " failed"
    local was_delayed = not waits and redis.call("ZREM", base .. "delayed", id) == 1
    if was_delayed then
      redis.call("HSET", parent_key, "delay", 0)
    end
    if waits or was_delayed then
      redis.call("HSET", parent_key, "defa", doom)
      release_parent(parent_key, base, id, now)
    elseif redis.call("EXISTS", parent_key) == 1
      and not redis.call("ZSCORE", base .. "failed", id) then
      redis.call("HSET", parent_key, "defa", doom)
    end
    return
  end
  if waits and (parent.cpof or redis.call("SCARD", dependencies) == 0) then
    release_parent(parent_key, base, id, now)
  end
  if not parent.rdof then
    redis.call("HSET", parent_key .. ":failed", key, reason)
  end
end
