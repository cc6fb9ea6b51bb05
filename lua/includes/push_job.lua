--- @include "priority_score"
--- @include "mark_base"

-- push_job(queue, id, priority, front, prioritized, priority_counter, marker): let a job wait for
-- its turn, at the back of those of its priority; without one, at the front of all if `front`.
-- `queue` is of `queue_state`.
local function push_job(queue, id, priority, front, prioritized, priority_counter, marker)
  if priority > 0 then
    redis.call("ZADD", prioritized, priority_score(priority, priority_counter), id)
  else
    redis.call(front and "RPUSH" or "LPUSH", queue.target, id)
  end
  mark_base(marker, queue.blocked)
end
