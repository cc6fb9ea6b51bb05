-- promote_job: let a delayed job run as soon as it is its turn.
--
-- KEYS
--   delayed            zset     jobs that may run later
--   wait               list     jobs that may run, taken from the tail
--   paused             list     the same while the queue is paused
--   active             list     jobs that run
--   prioritized        zset     jobs that may run, by priority
--   priority_counter   string   keeps jobs of equal priority in order
--   meta               hash     settings of the queue
--   events             stream   what happened
--   marker             zset     wakes workers
-- ARGV
--   prefix                      start of every key of this queue
--   job_id
-- RETURNS
--   0, or -3 if the job is not delayed, -1 if only its id is left; it is removed

local delayed, wait, paused, active, prioritized, priority_counter, meta, events, marker =
  unpack(KEYS)
local prefix, job_id = unpack(ARGV)

--- @include "queue_state"
--- @include "is_hash"
--- @include "finite"
--- @include "may_leave"
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
may_leave(delayed)
push_job(queue, job_id, priority, false, prioritized, priority_counter, marker)
redis.call("ZREM", delayed, job_id)
redis.call("XADD", events, "*", "event", "waiting", "jobId", job_id, "prev", "delayed")
redis.call("HSET", job, "delay", 0)
return 0
