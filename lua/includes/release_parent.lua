--- @include "finite"
--- @include "assert_can_remove"
--- @include "queue_state"
--- @include "wake_worker"
--- @include "add_delay_marker"
--- @include "priority_score"

-- release_parent(parent, base, id, now): release a parent that waited for its children. `parent` is
-- its hash, `base` its queue's key prefix. Without delay or priority it goes to the front, since it
-- has already waited.
local function release_parent(parent, base, id, now)
  local waiting_children = base .. "waiting-children"
  local fields = redis.call("HMGET", parent, "priority", "delay")
  local priority, delay = finite(fields[1]) or 0, finite(fields[2]) or 0
  local events, marker = base .. "events", base .. "marker"
  assert_can_remove(waiting_children)
  if delay > 0 then
    local due = now + delay
    redis.call("ZADD", base .. "delayed", due * 4096, id)
    redis.call("ZREM", waiting_children, id)
    redis.call("XADD", events, "*", "event", "delayed", "jobId", id, "delay", due)
    add_delay_marker(marker, base .. "delayed")
    return
  end
  local queue =
    queue_state(base .. "meta", base .. "active", base .. "wait", base .. "paused")
  if priority == 0 then
    redis.call("RPUSH", queue.target, id)
  else
    redis.call("ZADD", base .. "prioritized", priority_score(priority, base .. "pc"), id)
  end
  redis.call("ZREM", waiting_children, id)
  wake_worker(marker, queue.blocked)
  redis.call("XADD", events, "*", "event", "waiting", "jobId", id, "prev", "waiting-children")
end
