--- @include "awaits"
--- @include "find_parent"
--- @include "is_cancelled"
--- @include "may_leave"
--- @include "note_drop"
--- @include "release_parent"

-- tell_parent_failed(key, parent_key, reason, now): apply the child's failure policy to its parent.
-- Without a policy, the parent keeps waiting. The child stays pending until the end, as in
-- tell_parent_completed.
local function tell_parent_failed(key, parent_key, reason, now)
  local parent = find_parent(key, parent_key)
  if not (parent.fpof or parent.cpof or parent.idof or parent.rdof) then
    return
  end
  local dependencies = parent_key .. ":dependencies"
  if not awaits(parent_key, key) then
    return
  end
  local base, id = parent.base, parent.id
  local waits = redis.call("ZSCORE", base .. "waiting-children", id)
  if parent.fpof then
    redis.call("ZADD", parent_key .. ":unsuccessful", now, key)
    local doom = "child " .. key .. " failed"
    local known = redis.pcall("HGET", parent_key, "defa")
    if type(known) == "string" and is_cancelled(known) then
      doom = known -- a cancelled job stays cancelled
    end
    if waits then
      redis.call("HSET", parent_key, "defa", doom)
      release_parent(parent_key, base, id, now)
    elseif redis.call("ZSCORE", base .. "delayed", id) then
      may_leave(base .. "delayed")
      redis.call("HSET", parent_key, "delay", 0, "defa", doom)
      release_parent(parent_key, base, id, now)
      redis.call("ZREM", base .. "delayed", id)
    elseif redis.call("EXISTS", parent_key) == 1
      and not redis.call("ZSCORE", base .. "failed", id) then
      redis.call("HSET", parent_key, "defa", doom)
    end
  else
    if parent.rdof then
      note_drop(parent_key)
    else
      redis.call("HSET", parent_key .. ":failed", key, reason)
    end
    if waits and (parent.cpof or redis.call("SCARD", dependencies) == 1) then
      release_parent(parent_key, base, id, now)
    end
  end
  redis.call("SREM", dependencies, key)
end
