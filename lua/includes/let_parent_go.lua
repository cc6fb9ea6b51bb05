--- @include "may_leave"
--- @include "queue_state"
--- @include "mark_base"

-- let_parent_go(base, id, silent): move a parent whose last pending child is gone to the front of
-- its queue, regardless of delay and priority.
local function let_parent_go(base, id, silent)
  local queue = queue_state(base .. "meta", base .. "active", base .. "wait", base .. "paused")
  may_leave(base .. "waiting-children")
  redis.call("RPUSH", queue.target, id)
  redis.call("ZREM", base .. "waiting-children", id)
  mark_base(base .. "marker", queue.blocked)
  if not silent then
    redis.call("XADD", base .. "events", "*", "event", "waiting", "jobId", id,
      "prev", "waiting-children")
  end
end
