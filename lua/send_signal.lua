-- send_signal: send a signal to a job that has not ended.
--
-- KEYS
--   job               hash     the job
--   steps             hash     the job's steps
--   completed         zset     completed jobs
--   failed            zset     failed jobs
--   delayed           zset     delayed jobs, by due time
--   waiting_children  zset     jobs that wait for their children
-- ARGV
--   prefix                     queue key prefix
--   job_id
--   now                        ms
--   life                       ms to keep a signal without a wait
--   signal                     its name
--   value                      JSON
--   call_id                    id of this call
-- RETURNS
--   0, or -1 if there is no such job, -3 if it has ended
-- EFFECTS
--   the next wait for the signal takes it. If the job waits for it now, the child job of the first
--   such wait is removed, and the job is released unless it waits for other children as well

local job, steps, completed, failed, delayed, waiting_children = unpack(KEYS)
local prefix, job_id, now, life, signal, value, call_id = unpack(ARGV)

--- @include "finite"
--- @include "is_hash"
--- @include "claim_steps"
--- @include "is_child"
--- @include "find_parent"
--- @include "assert_can_remove"
--- @include "delete_job"
--- @include "release_parent"
--- @include "update_waits"

if not is_hash(job) then
  return -1
end
local has_ended = redis.call("ZSCORE", completed, job_id) or redis.call("ZSCORE", failed, job_id)
if not has_ended then
  claim_steps(job, steps, life)
end
-- A lost call is sent again, and may still arrive after that one.
local fields = redis.call("HMGET", steps, "count:" .. signal, "taken:" .. signal,
  "pending:" .. signal, "call:" .. call_id)
local count, taken, packed, is_stored = finite(fields[1]) or 0, finite(fields[2]) or 0, fields[3],
  fields[4]
if has_ended then
  return is_stored and 0 or -3
end
local child, child_id
for _, id in ipairs(packed and cmsgpack.unpack(packed) or {}) do
  if not child and redis.call("ZSCORE", delayed, id) and is_child(prefix .. id, job) then
    child, child_id = prefix .. id, id
    assert_can_remove(delayed)
  end
end
if not is_stored then
  count = count + 1
  redis.call("HSET", steps, "sent:" .. signal .. "#" .. count, value, "count:" .. signal, count,
    "call:" .. call_id, count)
end
if redis.call("PTTL", steps) < tonumber(life) then
  redis.call("PEXPIRE", steps, life)
end
if not child or count <= taken then
  return 0
end
local dependencies = job .. ":dependencies"
if is_waiting_for(job, child) then
  if redis.call("SCARD", dependencies) == 1
    and redis.call("ZSCORE", waiting_children, job_id) then
    release_parent(job, prefix, job_id, tonumber(now))
  end
  redis.call("SREM", dependencies, child)
end
redis.call("ZREM", delayed, child_id)
delete_job(child)
update_waits(steps, signal, child_id)
return 0
