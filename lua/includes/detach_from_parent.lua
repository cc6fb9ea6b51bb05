--- @include "count_dropped_child"
--- @include "is_hash"
--- @include "find_parent"
--- @include "release_deduplication"
--- @include "delete_job"
--- @include "assert_can_remove"
--- @include "queue_state"
--- @include "wake_worker"

-- detach_from_parent(base, key, parent_key, hard) -> whether the parent waited for this job, which
-- it no longer does. `parent_key` may be false. If it waited for nothing else, it is released, or
-- with `hard` removed if it is in this queue. A key that is not a parent (another type, another
-- Cluster slot) is left alone.
local function detach_from_parent(base, key, parent_key, hard)
  if not parent_key or not is_waiting_for(parent_key, key) then
    return false
  end
  local dependencies = parent_key .. ":dependencies"
  if redis.call("SCARD", dependencies) == 1 then
    local parent = find_parent(key, parent_key)
    local waiting_children = parent.base .. "waiting-children"
    if redis.call("ZSCORE", waiting_children, parent.id) then
      if not is_hash(parent_key) then
        redis.call("ZREM", waiting_children, parent.id)
      elseif not hard or parent.base ~= base then
        -- To the front of its queue, regardless of delay and priority.
        local queue = queue_state(parent.base .. "meta", parent.base .. "active",
          parent.base .. "wait", parent.base .. "paused")
        assert_can_remove(waiting_children)
        redis.call("RPUSH", queue.target, parent.id)
        redis.call("ZREM", waiting_children, parent.id)
        wake_worker(parent.base .. "marker", queue.blocked)
        if not hard then
          redis.call("XADD", parent.base .. "events", "*", "event", "waiting", "jobId", parent.id,
            "prev", "waiting-children")
        end
      else
        local fields = redis.call("HMGET", parent_key, "parentKey", "deid")
        -- First, because a job may be its own grandparent.
        redis.call("SREM", dependencies, key)
        detach_from_parent(base, parent_key, fields[1], hard)
        release_deduplication(base, parent.id, fields[2])
        redis.call("ZREM", waiting_children, parent.id)
        delete_job(parent_key)
      end
    end
  end
  redis.call("SREM", dependencies, key) -- first: a full Redis refuses a script's first addition
  count_dropped_child(parent_key)
  return true
end
