-- update_progress: note how far a job has come, and tell it.
--
-- KEYS
--   job      hash     the job
--   meta     hash     settings of the queue
--   events   stream   what happened
-- ARGV
--   job_id
--   progress          JSON
-- RETURNS
--   0, or -1 if there is no such job

local job, meta, events = unpack(KEYS)
local job_id, progress = unpack(ARGV)

--- @include "is_hash"
--- @include "event_limit"

if not is_hash(job) then
  return -1
end
redis.call("HSET", job, "progress", progress)
redis.call("XADD", events, "MAXLEN", "~", event_limit(meta), "*",
  "event", "progress", "jobId", job_id, "data", progress)
return 0
