--- @include "find_parent"
--- @include "queue_state"
--- @include "mark_base"

-- detach_from_parent(key): let the parent of a job that is removed wait for it no longer. A parent
-- that waited for nothing else runs next, whatever its delay and priority.
local function detach_from_parent(key)
  local parent_key = redis.call("HGET", key, "parentKey")
  if not parent_key then
    return
  end
  local dependencies = parent_key .. ":dependencies"
  if redis.call("SREM", dependencies, key) == 0 or redis.call("SCARD", dependencies) > 0 then
    return
  end
  local parent = find_parent(key, parent_key)
  local base, id = parent.base, parent.id
  if redis.call("ZREM", base .. "waiting-children", id) == 1 then
    local queue = queue_state(base .. "meta", base .. "active", base .. "wait", base .. "paused")
    redis.call("RPUSH", queue.target, id)
    mark_base(base .. "marker", queue.blocked)
    redis.call("XADD", base .. "events", "*", "event", "waiting", "jobId", id,
      "prev", "waiting-children")
  end
end
