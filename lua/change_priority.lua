-- change_priority: change a job's priority, and its position if it is waiting.
--
-- KEYS
--   job                hash     the job
--   wait               list     waiting jobs, taken from the tail
--   paused             list     waiting jobs while the queue is paused
--   active             list     running jobs
--   prioritized        zset     waiting jobs with a priority
--   priority_counter   string   orders jobs of equal priority
--   meta               hash     queue settings
--   marker             zset     wakes workers
-- ARGV
--   job_id
--   priority                    1 is the most urgent; 0 is no priority and runs before all others
--   lifo                        "1" to put it before jobs of the same priority
-- RETURNS
--   0, or -1 if there is no such job

local job, wait, paused, active, prioritized, priority_counter, meta, marker = unpack(KEYS)
local job_id, priority, lifo = unpack(ARGV)

--- @include "is_hash"
--- @include "assert_can_remove"
--- @include "queue_state"
--- @include "push_job"

if not is_hash(job) then
  return -1
end
priority, lifo = tonumber(priority), lifo == "1"
local list = redis.call("LPOS", wait, job_id) and wait
  or redis.call("LPOS", paused, job_id) and paused
local is_ranked = redis.call("ZSCORE", prioritized, job_id)
if is_ranked then
  assert_can_remove(prioritized)
elseif list then
  redis.call("LREM", list, 1, "") -- raises if LREM below would be refused
end
redis.call("HSET", job, "priority", priority)
if is_ranked or list then
  if priority > 0 and lifo then
    redis.call("ZADD", prioritized, priority * 0x100000000, job_id)
  else
    local queue = queue_state(meta, active, wait, paused)
    push_job(queue, job_id, priority, lifo, prioritized, priority_counter, marker)
  end
  if not is_ranked then
    redis.call("LREM", list, lifo and 1 or -1, job_id) -- remove the old entry, not the new one
  elseif priority <= 0 then
    redis.call("ZREM", prioritized, job_id)
  end
end
return 0
