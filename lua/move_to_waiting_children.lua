-- move_to_waiting_children: let a running job wait until its children have ended.
--
-- KEYS
--   job                hash     the job
--   active             list     jobs that run
--   waiting_children   zset     parents that wait for their children
--   stalled            set      active jobs whose worker has not been heard of
--   meta               hash     settings of the queue
--   events             stream   what happened
-- ARGV
--   job_id
--   token                       of the job's lock; "0": do not ask
--   now                         ms
--   child                       key of the child that it waits for; "": any
-- RETURNS
--   0 if it waits now, 1 if there is nothing to wait for; -1 if there is no such job, -2 and -6 if
--   its lock is gone or another's, -3 if it is not active, -9 if a child has failed it

local job, active, waiting_children, stalled, meta, events = unpack(KEYS)
local job_id, token, now, child = unpack(ARGV)

--- @include "is_hash"
--- @include "holds_lock"
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
local refused = holds_lock(lock, token)
if refused < 0 then
  return refused
end
if not redis.call("LPOS", active, job_id) then
  return -3
end
redis.call("LREM", active, 1, "") -- raises if it could not leave `active` below
redis.call("ZADD", waiting_children, now, job_id)
redis.call("LREM", active, -1, job_id)
if token ~= "0" then
  redis.call("DEL", lock)
  redis.call("SREM", stalled, job_id)
end
redis.call("XADD", events, "MAXLEN", "~", event_limit(meta), "*",
  "event", "waiting-children", "jobId", job_id, "prev", "active")
return 0
