-- remove_scheduler: remove a job scheduler, and its next run if that is still delayed.
--
-- KEYS
--   schedulers   zset     job schedulers, by the ms of their next run
--   scheduler    hash     the scheduler
--   delayed      zset     delayed jobs, by due time
--   events       stream   queue events
-- ARGV
--   prefix                queue key prefix
--   scheduler_id
--   run_part              part of its run ids: the scheduler id, except for old repeatable jobs
-- RETURNS
--   1, or 0 if there is no such scheduler
-- EFFECTS
--   a run that is waiting or active stays, and is the last

local schedulers, scheduler, delayed, events = unpack(KEYS)
local prefix, scheduler_id, run_part = unpack(ARGV)

--- @include "delete_job"
--- @include "assert_can_remove"

local score = redis.call("ZSCORE", schedulers, scheduler_id)
if not score then
  return redis.call("DEL", scheduler)
end
assert_can_remove(schedulers)
local pending = "repeat:" .. run_part .. ":" .. score
if redis.call("ZREM", delayed, pending) == 1 then
  redis.call("XADD", events, "*", "event", "removed", "jobId", pending, "prev", "delayed")
  delete_job(prefix .. pending)
end
redis.call("ZREM", schedulers, scheduler_id)
redis.call("DEL", scheduler)
return 1
