-- promote_job: move a delayed job to waiting immediately.
--
-- KEYS
--   delayed            zset     delayed jobs, by due time
--   wait               list     waiting jobs, taken from the tail
--   paused             list     waiting jobs while the queue is paused
--   active             list     running jobs
--   prioritized        zset     waiting jobs with a priority
--   priority_counter   string   orders jobs of equal priority
--   meta               hash     queue settings
--   events             stream   queue events
--   marker             zset     wakes workers
-- ARGV
--   prefix                      queue key prefix
--   job_id
-- RETURNS
--   0, or -3 if the job is not delayed, -1 if only its id was left, which is removed

local delayed, wait, paused, active, prioritized, priority_counter, meta, events, marker =
  unpack(KEYS)
local prefix, job_id = unpack(ARGV)

--- @include "queue_state"
--- @include "is_hash"
--- @include "finite"
--- @include "assert_can_remove"
--- @include "push_job"

if not redis.call("ZSCORE", delayed, job_id) then
  return -3
end
local job = prefix .. job_id
if not is_hash(job) then
  redis.call("ZREM", delayed, job_id)
  return -1
end
local queue = queue_state(meta, active, wait, paused)
local priority = finite(redis.call("HGET", job, "priority")) or 0
assert_can_remove(delayed)
push_job(queue, job_id, priority, false, prioritized, priority_counter, marker)
redis.call("ZREM", delayed, job_id)
redis.call("XADD", events, "*", "event", "waiting", "jobId", job_id, "prev", "delayed")
redis.call("HSET", job, "delay", 0)
return 0
