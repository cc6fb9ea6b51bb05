-- retry_jobs: run finished jobs again, a chunk per call, in the order they finished.
--
-- KEYS
--   ended    zset     `completed` or `failed`
--   wait     list     waiting jobs, taken from the tail
--   paused   list     waiting jobs while the queue is paused
--   active   list     running jobs
--   meta     hash     queue settings
--   events   stream   queue events
--   marker   zset     wakes workers
-- ARGV
--   prefix            queue key prefix
--   state             completed or failed
--   since             ms, or "-inf"; jobs that finished earlier stay
--   cutoff            ms; jobs that finished later stay
--   size              maximum number to retry
--   afresh            msgpack array: fields to reset, such as the attempt count
-- RETURNS
--   retried           number of jobs moved to waiting
--   more              1 if there may be more to retry, else 0
-- EFFECTS
--   as in BullMQ, all go to the waiting list, regardless of priority. Their parents wait for them
--   again. Ids without a job are removed. Cancellation and expiry are cleared

local ended, wait, paused, active, meta, events, marker = unpack(KEYS)
local prefix, state, since, cutoff, size, afresh = unpack(ARGV)

--- @include "is_hash"
--- @include "may_leave"
--- @include "queue_state"
--- @include "mark_base"
--- @include "event_limit"
--- @include "rejoin_parent"
--- @include "start_afresh"

local ids = redis.call("ZRANGEBYSCORE", ended, since, cutoff, "LIMIT", 0, size)
if #ids == 0 then
  return { 0, 0 }
end
local queue = queue_state(meta, active, wait, paused)
local outcome = state == "failed" and "failedReason" or "returnvalue"
local retried = {}
afresh = cmsgpack.unpack(afresh)
may_leave(ended)
for i = 1, #ids do
  local job = prefix .. ids[i]
  if is_hash(job) then
    retried[#retried + 1] = ids[i]
    redis.call("HDEL", job, "finishedOn", "processedOn", outcome, unpack(afresh))
    local fields = redis.call("HMGET", job, "parentKey", "opts", "defa")
    start_afresh(job, fields[2], fields[3])
    rejoin_parent(job, fields[1], state)
  end
end
if #retried > 0 then
  redis.call("LPUSH", queue.target, unpack(retried))
end
redis.call("ZREM", ended, unpack(ids))
if #retried > 0 then
  for i = 1, #retried do
    redis.call("XADD", events, "*", "event", "waiting", "jobId", retried[i], "prev", state)
  end
  mark_base(marker, queue.blocked)
  redis.call("XTRIM", events, "MAXLEN", "~", event_limit(meta, queue))
end
return { #retried, #ids == tonumber(size) and 1 or 0 }
