-- resume: let workers fetch jobs again.
--
-- KEYS
--   wait          list     waiting jobs, taken from the tail
--   paused        list     waiting jobs while the queue is paused, if BullMQ 5 may use it
--   prioritized   zset     waiting jobs with a priority
--   delayed       zset     delayed jobs, by due time
--   active        list     running jobs
--   meta          hash     queue settings
--   events        stream   queue events
--   marker        zset     wakes workers
-- ARGV
--   size                   maximum number of jobs to move
-- RETURNS
--   1 if more jobs must be moved and the queue is still paused, else 0
-- EFFECTS
--   the jobs in `paused` go to the tail of `wait`, and nothing is overwritten

local wait, paused, prioritized, delayed, active, meta, events, marker = unpack(KEYS)
local size = unpack(ARGV)

--- @include "queue_state"
--- @include "mark_base"
--- @include "mark_delay"
--- @include "join_lists"

if join_lists(wait, paused, wait, tonumber(size)) == 1 then
  return 1
end
redis.call("HDEL", meta, "paused")
if redis.call("EXISTS", wait, prioritized) > 0 then
  mark_base(marker, queue_state(meta, active, wait, paused).blocked)
else
  mark_delay(marker, delayed)
end
redis.call("XADD", events, "*", "event", "resumed")
return 0
