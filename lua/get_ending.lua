-- get_ending: find out whether and how a job has ended.
--
-- KEYS
--   job         hash   the job
--   completed   zset   jobs that are done
--   failed      zset   jobs that failed for good
-- ARGV
--   job_id
-- RETURNS
--   state              0 not yet, 1 completed, 2 failed, -1 there is no such job
--   outcome            its value (JSON) or the reason of its failure; "" if it has none

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
