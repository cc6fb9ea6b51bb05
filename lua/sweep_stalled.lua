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
--   to_fail                  those that the next worker must fail
--   leftovers                at the end, 0 if no flow is half added and no cancel is half done
--   groups                   at the end, 0 if no job is in a group
-- EFFECTS
--   a job without a lock that an earlier sweep marked goes to the front of the queue. Any other
--   active job is marked. Ids without a hash are dropped. Two workers may sweep concurrently, and
--   the next sweep takes over the suspects of an interrupted one

local stalled_check, stalled, suspects, active, wait, paused, schedulers, meta, events, marker =
  unpack(KEYS)
local prefix, now, interval, max_stalls, position, size = unpack(ARGV)

--- @include "queue_state"
--- @include "wake_worker"
--- @include "remove_indexes"
--- @include "event_limit"
--- @include "finite"
--- @include "is_cancelled"
--- @include "ignore_wrongtype"
--- @include "is_reserved_id"

-- find_stalled(prefix, ids, position, suspects) -> the positions of stalled jobs in `active`,
-- their ids (oldest first), and the ids of the others. `ids` is a slice of the list that ends
-- `position` entries before its tail.
local function find_stalled(prefix, ids, position, suspects)
  local indexes, gone, alive = {}, {}, {}
  if #ids == 0 then
    return indexes, gone, alive
  end
  local locks, seen = {}, {}
  for i = 1, #ids do
    locks[i] = prefix .. ids[i] .. ":lock"
  end
  local suspected = redis.call("SMISMEMBER", suspects, unpack(ids))
  local tokens = redis.call("MGET", unpack(locks))
  for i = #ids, 1, -1 do
    local id = ids[i]
    if tokens[i] or suspected[i] == 0 then
      alive[#alive + 1] = id
    else
      indexes[#indexes + 1] = i - #ids - 1 - position
      if not seen[id] then
        gone[#gone + 1] = id
        seen[id] = true
      end
    end
  end
  return indexes, gone, alive
end

-- count_stall(prefix, id, max_stalls, schedulers) -> how often the job has stalled (0 if it does
-- not exist), and the reason for the next worker to fail it, or nil: it stalled too often, or was
-- cancelled. Runs of an existing scheduler never stall too often, because the scheduler would stop
-- without them.
local function count_stall(prefix, id, max_stalls, schedulers)
  local key = prefix .. id
  local fields = ignore_wrongtype(redis.pcall("HMGET", key, "name", "stc", "rjk", "defa"))
  if not fields or is_reserved_id(id) or not fields[1] and redis.call("EXISTS", key) == 0 then
    return 0
  end
  local stalls = math.max(0, math.floor(finite(fields[2]) or 0)) + 1
  if is_cancelled(fields[4]) then
    return stalls, fields[4]
  end
  local is_over_limit = stalls > max_stalls
    and not (fields[3] and redis.call("ZSCORE", schedulers, fields[3]))
  return stalls, is_over_limit and "job stalled more than allowable limit" or nil
end

position, size, max_stalls = tonumber(position), tonumber(size), tonumber(max_stalls)
if position < 0 then
  if not redis.call("SET", stalled_check, now, "NX", "PX", interval) then
    return { -2, {}, {} }
  end
  -- Set aside the ids that the last sweep marked. A key of another type is deleted, because it
  -- would block every sweep.
  for _, marks in ipairs({ stalled, suspects }) do
    local kind = redis.call("TYPE", marks).ok
    if kind ~= "set" and kind ~= "none" then
      redis.call("UNLINK", marks)
    end
  end
  redis.call("XTRIM", events, "MAXLEN", "~", event_limit(meta))
  if redis.call("EXISTS", suspects) == 1 then -- from an interrupted sweep
    redis.call("SUNIONSTORE", suspects, suspects, stalled)
    redis.call("UNLINK", stalled)
  elseif redis.call("EXISTS", stalled) == 1 then
    redis.call("RENAME", stalled, suspects)
  end
  redis.call("PEXPIRE", suspects, 3600000) -- in case no other sweep follows
  position = 0
end

local length = redis.call("LLEN", active)
local ids = redis.call("LRANGE", active, -(position + size), -(position + 1))
local indexes, gone, alive = find_stalled(prefix, ids, position, suspects)

local put_back, counts, to_fail, deferred_failures = {}, {}, {}, {}
-- The newest is pushed last and fetched first. A job that kills its process soon after its start is
-- thus retried before the others run again.
for i = 1, #gone do
  local id = gone[i]
  local stalls, deferred_failure = count_stall(prefix, id, max_stalls, schedulers)
  if stalls > 0 then
    put_back[#put_back + 1], counts[#counts + 1] = id, stalls
    to_fail[#to_fail + 1], deferred_failures[id] = deferred_failure and id or nil, deferred_failure
  end
end
if #indexes > 0 then
  -- Raise, before anything is changed, if a command of remove_indexes would be refused.
  redis.call("LTRIM", active, 0, -1)
  redis.call("LSET", active, -(position + 1), ids[#ids])
  redis.call("LREM", active, 1, "")
  local queue = queue_state(meta, active, wait, paused)
  if #put_back > 0 then
    redis.call("RPUSH", queue.target, unpack(put_back))
  end
  remove_indexes(active, indexes)
  if #put_back > 0 then
    wake_worker(marker, queue.paused or queue.room + #indexes <= 0)
  end
end
for i = 1, #put_back do
  local key = prefix .. put_back[i]
  redis.call("HSET", key, "stc", counts[i])
  if deferred_failures[put_back[i]] then
    redis.call("HSET", key, "defa", deferred_failures[put_back[i]])
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
  local groups = redis.call("EXISTS", prefix .. "tb:turns", prefix .. "tb:held",
    prefix .. "tb:running") + redis.call("HEXISTS", meta, "tb:groups")
  return { -1, put_back, to_fail, leftovers, groups }
end
-- Overlap the chunks: jobs that finish in between move the others towards the tail.
return { math.max(0, position + #alive - math.floor(size / 8)), put_back, to_fail }
