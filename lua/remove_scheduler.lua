-- remove_scheduler: remove a job scheduler, and its next run if that is still delayed.
--
-- KEYS
--   schedulers   zset     job schedulers, by the ms of the run that comes next
--   scheduler    hash     what this one is
--   delayed      zset     jobs that may run later
--   events       stream   what happened
-- ARGV
--   prefix                start of every key of this queue
--   scheduler_id
--   run_part              what is in the ids of its runs: its id, but for old repeatable jobs
-- RETURNS
--   1, or 0 if there is no such scheduler
-- EFFECTS
--   a run that waits or is active stays, and is the last

local schedulers, scheduler, delayed, events = unpack(KEYS)
local prefix, scheduler_id, run_part = unpack(ARGV)

--- @include "delete_job"
--- @include "may_leave"

local score = redis.call("ZSCORE", schedulers, scheduler_id)
if not score then
  return redis.call("DEL", scheduler)
end
may_leave(schedulers)
local pending = "repeat:" .. run_part .. ":" .. score
if redis.call("ZREM", delayed, pending) == 1 then
  redis.call("XADD", events, "*", "event", "removed", "jobId", pending, "prev", "delayed")
  delete_job(prefix .. pending)
end
redis.call("ZREM", schedulers, scheduler_id)
redis.call("DEL", scheduler)
return 1
