-- update_progress: note how far a job has come, and tell it.
--
-- KEYS
--   job      hash     the job
--   lock     string   its lock
--   meta     hash     settings of the queue
--   events   stream   what happened
-- ARGV
--   job_id
--   token             of whoever runs the job; "0": of anybody
--   progress          JSON
-- RETURNS
--   0, or why it was refused: -1 no such job, -2 no lock, -6 another's lock

local job, lock, meta, events = unpack(KEYS)
local job_id, token, progress = unpack(ARGV)

--- @include "is_hash"
--- @include "event_limit"
--- @include "holds_lock"

if not is_hash(job) then
  return -1
end
local refused = holds_lock(lock, token)
if refused ~= 0 then
  return refused
end
redis.call("HSET", job, "progress", progress)
redis.call("XADD", events, "MAXLEN", "~", event_limit(meta), "*",
  "event", "progress", "jobId", job_id, "data", progress)
return 0
