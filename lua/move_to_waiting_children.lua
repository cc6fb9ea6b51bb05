-- move_to_waiting_children: make a running job wait until its children have finished.
--
-- KEYS
--   job                hash     the job
--   active             list     running jobs
--   waiting_children   zset     parents waiting for their children
--   stalled            set      active jobs whose lock was not renewed since the last sweep
--   meta               hash     queue settings
--   events             stream   queue events
-- ARGV
--   job_id
--   token                       token of the job's lock, or "0" to skip the check
--   now                         ms
--   child                       child key to wait for, or "" for any child
-- RETURNS
--   0 if it waits now, 1 if there is nothing to wait for, -1 if there is no such job, -2 if its
--   lock is gone, -6 if another worker holds it, -3 if it is not active, -9 if a failed child fails
--   it

local job, active, waiting_children, stalled, meta, events = unpack(KEYS)
local job_id, token, now, child = unpack(ARGV)

--- @include "is_hash"
--- @include "check_lock"
--- @include "event_limit"

if not is_hash(job) then
  return -1
end
if redis.call("EXISTS", job .. ":unsuccessful") == 1 then
  return -9
end
local dependencies = job .. ":dependencies"
if child ~= "" and redis.call("SISMEMBER", dependencies, child) == 0
  or redis.call("EXISTS", dependencies) == 0 then
  return 1
end
local lock = job .. ":lock"
local refused = check_lock(lock, token)
if refused < 0 then
  return refused
end
if not redis.call("LPOS", active, job_id) then
  return -3
end
redis.call("LREM", active, 1, "") -- raises if LREM below would be refused
redis.call("ZADD", waiting_children, now, job_id)
redis.call("LREM", active, -1, job_id)
if token ~= "0" then
  redis.call("DEL", lock)
  redis.call("SREM", stalled, job_id)
end
redis.call("XADD", events, "MAXLEN", "~", event_limit(meta), "*",
  "event", "waiting-children", "jobId", job_id, "prev", "active")
return 0
