-- resume: let workers take jobs again.
--
-- KEYS
--   wait          list     jobs that may run, taken from the tail
--   paused        list     where they are while the queue is paused, if BullMQ 5 may be around
--   prioritized   zset     jobs that may run, by priority
--   delayed       zset     jobs that may run later
--   active        list     jobs that run
--   meta          hash     settings of the queue
--   events        stream   what happened
--   marker        zset     wakes workers
-- ARGV
--   size                   how many jobs to move at the most
-- RETURNS
--   1 if jobs remain to be moved: the queue is still paused; else 0
-- EFFECTS
--   what is in `paused` is at the tail of `wait`: nothing is overwritten

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
