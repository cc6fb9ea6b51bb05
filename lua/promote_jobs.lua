-- promote_jobs: move delayed jobs to waiting, a chunk per call, in order of their due time.
--
-- KEYS
--   delayed   zset     delayed jobs, by due time
--   wait      list     waiting jobs, taken from the tail
--   paused    list     waiting jobs while the queue is paused
--   active    list     running jobs
--   meta      hash     queue settings
--   events    stream   queue events
--   marker    zset     wakes workers
-- ARGV
--   prefix             queue key prefix
--   size               number to promote
-- RETURNS
--   promoted           number of jobs moved to waiting
--   remaining          number of jobs still delayed
-- EFFECTS
--   as in BullMQ, all go to the waiting list, regardless of priority. An id without a job is
--   dropped

local delayed, wait, paused, active, meta, events, marker = unpack(KEYS)
local prefix, size = unpack(ARGV)

--- @include "queue_state"
--- @include "wake_worker"
--- @include "event_limit"
--- @include "is_hash"
--- @include "assert_can_remove"

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
assert_can_remove(delayed)
if #promoted > 0 then
  redis.call("LPUSH", queue.target, unpack(promoted))
end
redis.call("ZREM", delayed, unpack(ids))
if #promoted > 0 then
  for i = 1, #promoted do
    redis.call("XADD", events, "*", "event", "waiting", "jobId", promoted[i], "prev", "delayed")
  end
  wake_worker(marker, queue.blocked)
  redis.call("XTRIM", events, "MAXLEN", "~", event_limit(meta, queue))
end
return { #promoted, redis.call("ZCARD", delayed) }
