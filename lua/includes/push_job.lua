--- @include "priority_score"
--- @include "wake_worker"

-- push_job(queue, id, priority, front, prioritized, priority_counter, marker): let a job wait at
-- the back of its priority. Without a priority, it goes to the back of the list, or to the front if
-- `front`. `queue` is from queue_state.
local function push_job(queue, id, priority, front, prioritized, priority_counter, marker)
  if priority > 0 then
    redis.call("ZADD", prioritized, priority_score(priority, priority_counter), id)
  else
    redis.call(front and "RPUSH" or "LPUSH", queue.target, id)
  end
  wake_worker(marker, queue.blocked)
end
