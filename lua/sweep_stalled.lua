-- sweep_stalled: put back active jobs whose worker is gone, a chunk of `active` per call.
--
-- KEYS
--   stalled_check   string   exists while no sweep is due
--   stalled         set      ids active at the last sweep and not renewed since
--   suspects        set      `stalled` as it was when this sweep began
--   active          list     running jobs, newest at the head
--   wait            list     waiting jobs, taken from the tail
--   paused          list     waiting jobs while the queue is paused
--   schedulers      zset     job schedulers
--   meta            hash     queue settings
--   events          stream   queue events
--   marker          zset     wakes workers
-- ARGV
--   prefix                   queue key prefix
--   now                      ms
--   interval                 ms until the next sweep is due
--   max_stalls               how often a job may stall before it fails
--   position                 number of entries checked so far, from the tail of `active`, or -1 to
--                            begin a sweep
--   size                     number of jobs to check
-- RETURNS
--   position                 position to continue from, or -1 at the end, -2 if no sweep is due
--   put_back                 ids of the jobs moved back to waiting
--   doomed                   those that the next worker must fail
--   leftovers                at the end, 0 if no flow is half added and no cancel is half done
-- EFFECTS
--   a job without a lock that an earlier sweep marked goes to the front of the queue. Any other
--   active job is marked. Ids without a hash are dropped. Two workers may sweep concurrently, and
--   the next sweep takes over the suspects of an interrupted one

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
-- The newest is pushed last and fetched first. A job that kills its process soon after its start is
-- thus retried before the others run again.
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
-- Overlap the chunks: jobs that finish in between move the others towards the tail.
return { math.max(0, position + #alive - math.floor(size / 8)), put_back, doomed }
