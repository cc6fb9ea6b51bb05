-- pause: let no worker take a job until the queue is resumed.
--
-- KEYS
--   wait       list     jobs that may run, taken from the tail
--   paused     list     where they are while the queue is paused, if BullMQ 5 may be around
--   active     list     jobs that run
--   meta       hash     settings of the queue
--   events     stream   what happened
--   marker     zset     wakes workers
-- ARGV
--   begin               "1": pause; "0": the queue is paused, go on moving jobs
--   size                how many jobs to move at the most
-- RETURNS
--   1 if jobs remain to be moved, else 0
-- EFFECTS
--   running jobs go on; waiting jobs are moved to `paused`, behind what is there, unless the queue
--   belongs to BullMQ 6

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
