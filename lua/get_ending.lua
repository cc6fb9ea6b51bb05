-- get_ending: return whether a job has finished, and its outcome.
--
-- KEYS
--   job         hash   the job
--   completed   zset   completed jobs
--   failed      zset   failed jobs
-- ARGV
--   job_id
-- RETURNS
--   state              0 not finished, 1 completed, 2 failed, -1 no such job
--   outcome            its result (JSON) or failure reason, or ""

local job, completed, failed = unpack(KEYS)
local job_id = unpack(ARGV)

--- @include "is_hash"

if not is_hash(job) then
  return { -1, "" }
elseif redis.call("ZSCORE", completed, job_id) then
  return { 1, redis.call("HGET", job, "returnvalue") or "" }
elseif redis.call("ZSCORE", failed, job_id) then
  return { 2, redis.call("HGET", job, "failedReason") or "" }
end
return { 0, "" }
