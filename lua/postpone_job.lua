-- postpone_job: let a job that waits for its turn be due later.
--
-- KEYS
--   job           hash     the job
--   wait          list     jobs that may run, taken from the tail
--   paused        list     the same while the queue is paused
--   prioritized   zset     jobs that may run, by priority
--   delayed       zset     jobs that may run later
--   meta          hash     settings of the queue
--   events        stream   what happened
--   marker        zset     wakes workers
-- ARGV
--   job_id
--   due                    ms
--   delay                  ms from now until then
-- RETURNS
--   0, or -1 if there is no such job, -3 if it does not wait for its turn

local job, wait, paused, prioritized, delayed, meta, events, marker = unpack(KEYS)
local job_id, due, delay = unpack(ARGV)

--- @include "is_hash"
--- @include "may_leave"
--- @include "event_limit"
--- @include "delayed_score"
--- @include "mark_delay"

if not is_hash(job) then
  return -1
end
local is_ranked = redis.call("ZSCORE", prioritized, job_id)
local list = redis.call("LPOS", wait, job_id) and wait
  or redis.call("LPOS", paused, job_id) and paused
if is_ranked then
  may_leave(prioritized)
elseif list then
  redis.call("LREM", list, 1, "") -- raises if the job could not leave the list below
else
  return -3
end
redis.call("HSET", job, "delay", delay)
redis.call("ZADD", delayed, delayed_score(delayed, tonumber(due)), job_id)
if is_ranked then
  redis.call("ZREM", prioritized, job_id)
else
  redis.call("LREM", list, 1, job_id)
end
redis.call("XADD", events, "MAXLEN", "~", event_limit(meta), "*",
  "event", "delayed", "jobId", job_id, "delay", due)
mark_delay(marker, delayed)
return 0
