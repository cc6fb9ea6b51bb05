-- postpone_job: delay a waiting job.
--
-- KEYS
--   job           hash     the job
--   wait          list     waiting jobs, taken from the tail
--   paused        list     waiting jobs while the queue is paused
--   prioritized   zset     waiting jobs with a priority
--   delayed       zset     delayed jobs, by due time
--   meta          hash     queue settings
--   events        stream   queue events
--   marker        zset     wakes workers
-- ARGV
--   job_id
--   due                    ms
--   delay                  ms from now until then
-- RETURNS
--   0, or -1 if there is no such job, -3 if it is not waiting

local job, wait, paused, prioritized, delayed, meta, events, marker = unpack(KEYS)
local job_id, due, delay = unpack(ARGV)

--- @include "is_hash"
--- @include "assert_can_remove"
--- @include "event_limit"
--- @include "delayed_score"
--- @include "add_delay_marker"

if not is_hash(job) then
  return -1
end
local is_ranked = redis.call("ZSCORE", prioritized, job_id)
local list = redis.call("LPOS", wait, job_id) and wait
  or redis.call("LPOS", paused, job_id) and paused
if is_ranked then
  assert_can_remove(prioritized)
elseif list then
  redis.call("LREM", list, 1, "") -- raises if LREM below would be refused
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
add_delay_marker(marker, delayed)
return 0
