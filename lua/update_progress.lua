-- update_progress: store a job's progress and emit an event.
--
-- KEYS
--   job      hash     the job
--   lock     string   the job's lock
--   meta     hash     queue settings
--   events   stream   queue events
-- ARGV
--   job_id
--   token             token of the job's lock, or "0" to skip the check
--   progress          JSON
-- RETURNS
--   0, or the reason for refusing: -1 no such job, -2 no lock, -6 another worker's lock

local job, lock, meta, events = unpack(KEYS)
local job_id, token, progress = unpack(ARGV)

--- @include "event_limit"
--- @include "check_job"

local refused = check_job(job, lock, token)
if refused ~= 0 then
  return refused
end
redis.call("HSET", job, "progress", progress)
redis.call("XADD", events, "MAXLEN", "~", event_limit(meta), "*",
  "event", "progress", "jobId", job_id, "data", progress)
return 0
