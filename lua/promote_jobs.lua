-- promote_jobs: let delayed jobs run at once, a piece at a time, those that are due first before.
--
-- KEYS
--   delayed   zset     jobs that may run later
--   wait      list     jobs that may run, taken from the tail
--   paused    list     the same while the queue is paused
--   active    list     jobs that run
--   meta      hash     settings of the queue
--   events    stream   what happened
--   marker    zset     wakes workers
-- ARGV
--   prefix             start of every key of this queue
--   size               how many to promote
-- RETURNS
--   promoted           how many wait now
--   remaining          how many are still delayed
-- EFFECTS
--   as BullMQ's: all go to the waiting list, whatever their priority. An id without a job is
--   dropped

local delayed, wait, paused, active, meta, events, marker = unpack(KEYS)
local prefix, size = unpack(ARGV)

--- @include "queue_state"
--- @include "mark_base"
--- @include "event_limit"
--- @include "is_hash"
--- @include "may_leave"

local ids = redis.call("ZRANGE", delayed, 0, size - 1)
if #ids == 0 then
  return { 0, 0 }
end
local queue, promoted = queue_state(meta, active, wait, paused), {}
for i = 1, #ids do
  if is_hash(prefix .. ids[i]) then
    promoted[#promoted + 1] = ids[i]
  end
end
may_leave(delayed)
if #promoted > 0 then
  redis.call("LPUSH", queue.target, unpack(promoted))
end
redis.call("ZREM", delayed, unpack(ids))
if #promoted > 0 then
  for i = 1, #promoted do
    redis.call("XADD", events, "*", "event", "waiting", "jobId", promoted[i], "prev", "delayed")
  end
  mark_base(marker, queue.blocked)
  redis.call("XTRIM", events, "MAXLEN", "~", event_limit(meta, queue))
end
return { #promoted, redis.call("ZCARD", delayed) }
