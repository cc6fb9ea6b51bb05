-- get_state: find out in which state a job is.
--
-- KEYS
--   completed          zset   jobs that are done
--   failed             zset   jobs that failed for good
--   delayed            zset   jobs that may run later
--   prioritized        zset   jobs that may run, by priority
--   waiting_children   zset   parents that wait for their children
--   active             list   jobs that run
--   wait               list   jobs that may run
--   paused             list   the same while the queue is paused
-- ARGV
--   job_id
-- RETURNS
--   the state's name; unknown if the job is nowhere

local completed, failed, delayed, prioritized, waiting_children, active, wait, paused =
  unpack(KEYS)
local job_id = unpack(ARGV)

if redis.call("ZSCORE", completed, job_id) then
  return "completed"
elseif redis.call("ZSCORE", failed, job_id) then
  return "failed"
elseif redis.call("ZSCORE", delayed, job_id) then
  return "delayed"
elseif redis.call("ZSCORE", prioritized, job_id) then
  return "prioritized"
elseif redis.call("ZSCORE", waiting_children, job_id) then
  return "waiting-children"
elseif redis.call("LPOS", active, job_id) then
  return "active"
elseif redis.call("LPOS", wait, job_id) or redis.call("LPOS", paused, job_id) then
  return "waiting"
end
return "unknown"
