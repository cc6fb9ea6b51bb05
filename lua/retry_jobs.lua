-- retry_jobs: let jobs that have ended run once more, a piece at a time, the oldest end first.
--
-- KEYS
--   ended    zset     `completed` or `failed`
--   wait     list     jobs that may run, taken from the tail
--   paused   list     the same while the queue is paused
--   active   list     jobs that run
--   meta     hash     settings of the queue
--   events   stream   what happened
--   marker   zset     wakes workers
-- ARGV
--   prefix            start of every key of this queue
--   state             completed or failed
--   since             ms, or "-inf"; what has ended earlier stays
--   cutoff            ms; what has ended later stays
--   size              how many to retry
--   afresh            msgpack array: fields to forget, such as the number of attempts
-- RETURNS
--   retried           how many wait now
--   more              1 if there may be more to retry, else 0
-- EFFECTS
--   as BullMQ's: all go to the waiting list, whatever their priority; their parents wait for them
--   again. Ids without a job are removed. That they were cancelled, or had to begin by some time,
--   is forgotten

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
