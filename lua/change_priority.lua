-- change_priority: give a job another priority; if it waits for its turn, it gets its new place.
--
-- KEYS
--   job                hash     the job
--   wait               list     jobs that may run, taken from the tail
--   paused             list     the same while the queue is paused
--   active             list     jobs that run
--   prioritized        zset     jobs that may run, by priority
--   priority_counter   string   keeps jobs of equal priority in order
--   meta               hash     settings of the queue
--   marker             zset     wakes workers
-- ARGV
--   job_id
--   priority                    1 is the most urgent; 0: none, and before all others
--   lifo                        "1": before those of the same priority
-- RETURNS
--   0, or -1 if there is no such job

local job, wait, paused, active, prioritized, priority_counter, meta, marker = unpack(KEYS)
local job_id, priority, lifo = unpack(ARGV)

--- @include "is_hash"
--- @include "queue_state"
--- @include "push_job"

if not is_hash(job) then
  return -1
end
priority, lifo = tonumber(priority), lifo == "1"
if redis.call("ZREM", prioritized, job_id) == 1
  or redis.call("LREM", wait, -1, job_id) == 1
  or redis.call("LREM", paused, -1, job_id) == 1 then
  if priority > 0 and lifo then
    redis.call("ZADD", prioritized, priority * 0x100000000, job_id)
  else
    local queue = queue_state(meta, active, wait, paused)
    push_job(queue, job_id, priority, lifo, prioritized, priority_counter, marker)
  end
end
redis.call("HSET", job, "priority", priority)
return 0
