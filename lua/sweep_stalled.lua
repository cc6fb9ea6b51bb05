-- sweep_stalled: put back active jobs whose worker is gone, a piece of `active` at a time.
--
-- KEYS
--   stalled_check   string   there while no sweep is due
--   stalled         set      ids that were active at the last sweep, and not renewed since
--   suspects        set      `stalled` as it was when this sweep began
--   active          list     jobs that run, newest at the head
--   wait            list     jobs that may run, taken from the tail
--   paused          list     the same while the queue is paused
--   schedulers      zset     job schedulers
--   meta            hash     settings of the queue
--   events          stream   what happened
--   marker          zset     wakes workers
-- ARGV
--   prefix                   start of every key of this queue
--   now                      ms
--   interval                 ms until the next sweep is due
--   max_stalls               how often a job may stall before it fails
--   position                 how much of the tail of `active` was looked at; -1: begin a sweep
--   size                     how many jobs to look at
-- RETURNS
--   position                 where to go on; -1: the sweep is over; -2: none is due
--   put_back                 ids of the jobs that wait again
--   doomed                   those of them that the next worker fails
--   leftovers                at the end: 0 if no flow is half added, and none half cancelled
-- EFFECTS
--   a job that was marked by an earlier sweep and has no lock goes to the front of the queue; any
--   other active job is marked. Jobs without a hash are dropped. Two may sweep at once, and the
--   suspects of one that dies are taken up by the next sweep

local stalled_check, stalled, suspects, active, wait, paused, schedulers, meta, events, marker =
  unpack(KEYS)
local prefix, now, interval, max_stalls, position, size = unpack(ARGV)

--- @include "queue_state"
--- @include "mark_base"
--- @include "may_cut_out"
--- @include "cut_out"
--- @include "begin_sweep"
--- @include "stalled_places"
--- @include "count_stall"

position, size, max_stalls = tonumber(position), tonumber(size), tonumber(max_stalls)
if position < 0 then
  if not redis.call("SET", stalled_check, now, "NX", "PX", interval) then
    return { -2, {}, {} }
  end
  begin_sweep(stalled, suspects, meta, events)
  position = 0
end

local length = redis.call("LLEN", active)
local ids = redis.call("LRANGE", active, -(position + size), -(position + 1))
local places, gone, alive = stalled_places(prefix, ids, position, suspects)

local put_back, counts, doomed, doom_of = {}, {}, {}, {}
-- The newest is pushed last, and so is the first to be taken: a job that kills its process soon
-- after its start is tried before the others run again.
for i = 1, #gone do
  local id = gone[i]
  local stalls, doom = count_stall(prefix, id, max_stalls, schedulers)
  if stalls > 0 then
    put_back[#put_back + 1], counts[#counts + 1] = id, stalls
    doomed[#doomed + 1], doom_of[id] = doom and id or nil, doom
  end
end
if #places > 0 then
  may_cut_out(active, -(position + 1), ids[#ids])
  local queue = queue_state(meta, active, wait, paused)
  if #put_back > 0 then
    redis.call("RPUSH", queue.target, unpack(put_back))
  end
  cut_out(active, places)
  if #put_back > 0 then
    mark_base(marker, queue.paused or queue.room + #places <= 0)
  end
end
for i = 1, #put_back do
  local key = prefix .. put_back[i]
  redis.call("HSET", key, "stc", counts[i])
  if doom_of[put_back[i]] then
    redis.call("HSET", key, "defa", doom_of[put_back[i]])
  end
end
for i = 1, #put_back do
  redis.call("XADD", events, "*", "event", "waiting", "jobId", put_back[i], "prev", "active")
  redis.call("XADD", events, "*", "event", "stalled", "jobId", put_back[i])
end
if #alive > 0 then
  redis.call("SADD", stalled, unpack(alive))
end

if position + size >= length then
  redis.call("UNLINK", suspects)
  local leftovers = redis.call("EXISTS", prefix .. "tb:flows", prefix .. "tb:cancelling")
  return { -1, put_back, doomed, leftovers }
end
-- A little is looked at twice: jobs that end meanwhile let the others move towards the tail.
return { math.max(0, position + #alive - math.floor(size / 8)), put_back, doomed }
