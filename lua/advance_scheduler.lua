-- advance_scheduler: add the run of a job scheduler that follows the one that was just taken.
--
-- KEYS
--   schedulers         zset     job schedulers, by the ms of the run that comes next
--   scheduler          hash     what this one is: name, data, every, offset, ...
--   job                hash     the run that was taken
--   meta               hash     settings of the queue
--   wait               list     jobs that may run, taken from the tail
--   paused             list     the same while the queue is paused
--   active             list     jobs that run
--   prioritized        zset     jobs that may run, by priority
--   delayed            zset     jobs that may run later
--   events             stream   what happened
-- ARGV
--   prefix                      start of every key of this queue
--   scheduler_id                the scheduler
--   job_id                      the run that was taken
--   now                         ms
--   count                       number of the run to add
--   due                         ms when it is due; "": in the next slot of `every`
--   after                       ms of a slot that is taken: look for one after it; "": none is
--   old_part                    of a repeatable job of BullMQ 3 and 4: the middle of the ids of its
--                               runs; "" for a scheduler
-- RETURNS
--   the id of the run that was added; "": none, as the scheduler is gone, or has gone on already;
--   then ms of the last slot that was passed over, since a job of another origin has the id of its
--   run; "": none. If both are there, a slot was found after it; if no id is, none was
-- EFFECTS
--   as those of BullMQ 6; a scheduler that has no data passes on those of the run

local schedulers, scheduler, job, meta, wait, paused, active, prioritized, delayed, events =
  unpack(KEYS)
local prefix, scheduler_id, job_id, now, count, due, after, old_part = unpack(ARGV)

--- @include "current_iteration"
--- @include "finite"
--- @include "next_slot"
--- @include "queue_state"
--- @include "event_limit"
--- @include "make_run"
--- @include "add_run"
--- @include "undo_add"

local is_old = old_part ~= ""
local is_current
if is_old then
  local score = redis.call("ZSCORE", schedulers, scheduler_id)
  is_current = score and string.match(job_id, "^repeat:.*:(%d+)$") == score
else
  is_current = current_iteration(prefix, job_id, scheduler_id)
end
if not is_current then
  return { "", "" } -- it was removed, or replaced, or a retry of this run is taken
end
local taken = redis.call("HMGET", job, "name", "data", "opts")
if not taken[3] then
  return { "", "" }
end
local known = redis.call("HMGET", scheduler, "name", "data", "every", "offset")
local name, data = known[1] or taken[1] or "", known[2] or taken[2] or "{}"
local readable, opts = pcall(cjson.decode, taken[3])
if not readable or type(opts) ~= "table" or type(opts["repeat"]) ~= "table" then
  return { "", "" }
end

now, count = tonumber(now), tonumber(count)
local last = finite(redis.call("ZSCORE", schedulers, scheduler_id))
local is_cron, every = due ~= "", nil
if is_cron then
  due = tonumber(due)
else
  every = finite(known[3] or opts["repeat"].every) or 0
  if every < 1 then
    return { "", "" }
  end
  due = next_slot(tonumber(after) or last, every, finite(known[4]) or 0, now)
end

-- Is the id of the run at `due` that of a job which is none of this scheduler's?
local function is_stranger()
  local key = string.format("%srepeat:%s:%.0f", prefix, is_old and old_part or scheduler_id, due)
  return redis.call("EXISTS", key) == 1 and redis.pcall("HGET", key, "rjk") ~= scheduler_id
end
local MOST, passed = 100, ""
for tries = 1, MOST do
  if not is_stranger() then
    break
  end
  passed = string.format("%.0f", due)
  if is_cron or tries == MOST then
    return { "", passed }
  end
  due = due + every
end

opts.attempts = opts.attempts or 0
if type(opts.backoff) == "number" then
  opts.backoff = { type = "fixed", delay = opts.backoff }
end
local run = make_run(scheduler_id, now, due, opts, count, is_cron, is_old and old_part or nil)
if not run then
  return { "", "" }
end
local queue = queue_state(meta, active, wait, paused)
if redis.call("EXISTS", prefix .. run.id) == 1 then
  redis.call("XADD", events, "MAXLEN", "~", event_limit(meta, queue), "*", "event", "duplicated",
    "jobId", run.id)
  return { "", "" }
end
local function add()
  add_run(prefix, queue, scheduler_id, now, run, name, data)
  if not is_old then
    redis.call("HINCRBY", scheduler, "ic", 1)
  end
end

-- All or nothing: else the scheduler would take the run for added, and end.
local is_added, problem = pcall(add)
if not is_added then
  redis.pcall("ZADD", schedulers, last, scheduler_id)
  undo_add(prefix, run.id, { delayed, prioritized }, queue.target)
  error(problem, 0)
end
redis.call("XTRIM", events, "MAXLEN", "~", event_limit(meta, queue))
return { run.id, passed }
