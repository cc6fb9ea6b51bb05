-- retry_job: run a finished job again.
--
-- KEYS
--   job                hash     the job
--   finished           zset     `completed` or `failed`
--   wait               list     waiting jobs, taken from the tail
--   paused             list     waiting jobs while the queue is paused
--   active             list     running jobs
--   prioritized        zset     waiting jobs with a priority
--   priority_counter   string   orders jobs of equal priority
--   meta               hash     queue settings
--   events             stream   queue events
--   marker             zset     wakes workers
-- ARGV
--   job_id
--   state                       completed or failed
--   reset_fields                msgpack array: fields to reset, such as the attempt count
--   reset_steps                 "1" to delete the results of its steps, or "0"
-- RETURNS
--   0, or -1 if there is no such job, -3 if it has not finished in that state
-- EFFECTS
--   it waits at the back of its priority, or at the front if it was added with lifo and without a
--   priority. Its parent waits for it again. Its cancellation and expiry are cleared

local job, finished, wait, paused, active, prioritized, priority_counter, meta, events, marker =
  unpack(KEYS)
local job_id, state, reset_fields, reset_steps = unpack(ARGV)

--- @include "is_hash"
--- @include "finite"
--- @include "assert_can_remove"
--- @include "queue_state"
--- @include "event_limit"
--- @include "push_job"
--- @include "reattach_to_parent"
--- @include "clear_cancellation"

if not is_hash(job) then
  return -1
end
if not redis.call("ZSCORE", finished, job_id) then
  return -3
end
assert_can_remove(finished)
local fields = redis.call("HMGET", job, "priority", "opts", "parentKey", "defa")
local priority, parent_key = finite(fields[1]) or 0, fields[3]
local is_json, opts = pcall(cjson.decode, fields[2] or "")
local lifo = is_json and type(opts) == "table" and opts.lifo == true
local outcome = state == "failed" and "failedReason" or "returnvalue"
redis.call("HDEL", job, "finishedOn", "processedOn", outcome, unpack(cmsgpack.unpack(reset_fields)))
clear_cancellation(job, fields[2], fields[4])
if reset_steps == "1" then
  redis.call("DEL", job .. ":tb:steps")
end
local queue = queue_state(meta, active, wait, paused)
push_job(queue, job_id, priority, lifo, prioritized, priority_counter, marker)
redis.call("ZREM", finished, job_id)
reattach_to_parent(job, parent_key, state)
redis.call("XADD", events, "MAXLEN", "~", event_limit(meta, queue), "*",
  "event", "waiting", "jobId", job_id, "prev", state)
return 0
