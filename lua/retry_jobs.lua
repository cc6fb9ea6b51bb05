-- retry_jobs: run finished jobs again, a chunk per call, in the order they finished.
--
-- KEYS
--   finished   zset     `completed` or `failed`
--   wait       list     waiting jobs, taken from the tail
--   paused     list     waiting jobs while the queue is paused
--   active     list     running jobs
--   meta       hash     queue settings
--   events     stream   queue events
--   marker     zset     wakes workers
-- ARGV
--   prefix              queue key prefix
--   state               completed or failed
--   since               ms, or "-inf"; jobs that finished earlier stay
--   cutoff              ms; jobs that finished later stay
--   size                maximum number to retry
--   reset_fields        msgpack array: fields to reset, such as the attempt count
-- RETURNS
--   retried             number of jobs moved to waiting
--   more                1 if there may be more to retry, else 0
-- EFFECTS
--   as in BullMQ, all go to the waiting list, regardless of priority. Their parents wait for them
--   again. Ids without a job are removed. Cancellation and expiry are cleared

local finished, wait, paused, active, meta, events, marker = unpack(KEYS)
local prefix, state, since, cutoff, size, reset_fields = unpack(ARGV)

--- @include "is_hash"
--- @include "assert_can_remove"
--- @include "queue_state"
--- @include "wake_worker"
--- @include "event_limit"
--- @include "reattach_to_parent"
--- @include "clear_cancellation"

local ids = redis.call("ZRANGEBYSCORE", finished, since, cutoff, "LIMIT", 0, size)
if #ids == 0 then
  return { 0, 0 }
end
local queue = queue_state(meta, active, wait, paused)
local outcome = state == "failed" and "failedReason" or "returnvalue"
local retried = {}
reset_fields = cmsgpack.unpack(reset_fields)
assert_can_remove(finished)
for i = 1, #ids do
  local job = prefix .. ids[i]
  if is_hash(job) then
    retried[#retried + 1] = ids[i]
    redis.call("HDEL", job, "finishedOn", "processedOn", outcome, unpack(reset_fields))
    local fields = redis.call("HMGET", job, "parentKey", "opts", "defa")
    clear_cancellation(job, fields[2], fields[3])
    reattach_to_parent(job, fields[1], state)
  end
end
if #retried > 0 then
  redis.call("LPUSH", queue.target, unpack(retried))
end
redis.call("ZREM", finished, unpack(ids))
if #retried > 0 then
  for i = 1, #retried do
    redis.call("XADD", events, "*", "event", "waiting", "jobId", retried[i], "prev", state)
  end
  wake_worker(marker, queue.blocked)
  redis.call("XTRIM", events, "MAXLEN", "~", event_limit(meta, queue))
end
return { #retried, #ids == tonumber(size) and 1 or 0 }
