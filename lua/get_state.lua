-- get_state: return a job's state.
--
-- KEYS
--   completed          zset   completed jobs
--   failed             zset   failed jobs
--   delayed            zset   delayed jobs, by due time
--   prioritized        zset   waiting jobs with a priority
--   waiting_children   zset   parents waiting for their children
--   active             list   running jobs
--   wait               list   waiting jobs
--   paused             list   waiting jobs while the queue is paused
-- ARGV
--   job_id
-- RETURNS
--   the state's name, or unknown if the job is nowhere

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
