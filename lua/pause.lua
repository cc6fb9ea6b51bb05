-- pause: stop workers from fetching jobs until the queue is resumed.
--
-- KEYS
--   wait       list     waiting jobs, taken from the tail
--   paused     list     waiting jobs while the queue is paused, if BullMQ 5 may use it
--   active     list     running jobs
--   meta       hash     queue settings
--   events     stream   queue events
--   marker     zset     wakes workers
-- ARGV
--   begin               "1" to pause, or "0" to continue moving jobs of a paused queue
--   size                maximum number of jobs to move
-- RETURNS
--   1 if more jobs must be moved, else 0
-- EFFECTS
--   running jobs continue. Waiting jobs are moved to `paused`, behind those already there, unless
--   the queue belongs to BullMQ 6

local wait, paused, active, meta, events, marker = unpack(KEYS)
local begin, size = unpack(ARGV)

--- @include "queue_state"
--- @include "join_lists"

if begin == "1" then
  redis.call("HSET", meta, "paused", 1)
  redis.call("DEL", marker)
  redis.call("XADD", events, "*", "event", "paused")
end
if not queue_state(meta, active, false, paused).target then
  return 0
end
return join_lists(wait, paused, paused, tonumber(size))
