-- advance_scheduler: add a job scheduler's next run, after the one that was just fetched.
--
-- KEYS
--   schedulers         zset     job schedulers, by the ms of their next run
--   scheduler          hash     the scheduler: name, data, every, offset, ...
--   job                hash     the run that was fetched
--   meta               hash     queue settings
--   wait               list     waiting jobs, taken from the tail
--   paused             list     waiting jobs while the queue is paused
--   active             list     running jobs
--   prioritized        zset     waiting jobs with a priority
--   delayed            zset     delayed jobs, by due time
--   events             stream   queue events
-- ARGV
--   prefix                      queue key prefix
--   scheduler_id                the scheduler's id
--   job_id                      the run that was fetched
--   now                         ms
--   count                       number of the run to add
--   due                         ms when it is due, or "" for the next slot of `every`
--   after                       ms of a slot that is taken, to search after it; or ""
--   old_part                    for a repeatable job of BullMQ 3 and 4, the middle part of its run
--                               ids; "" for a scheduler
-- RETURNS
--   id of the added run, or "" if the scheduler is gone, has already advanced, or no slot was free.
--   Then the ms of the last slot skipped because an unrelated job has the id of its run, or ""
-- EFFECTS
--   as in BullMQ 6; a scheduler without data reuses the run's data

local schedulers, scheduler, job, meta, wait, paused, active, prioritized, delayed, events =
  unpack(KEYS)
local prefix, scheduler_id, job_id, now, count, due, after, old_part = unpack(ARGV)

--- @include "is_next_run"
--- @include "finite"
--- @include "queue_state"
--- @include "event_limit"
--- @include "add_run"
--- @include "undo_add"

local is_old = old_part ~= ""
local is_current
if is_old then
  local score = redis.call("ZSCORE", schedulers, scheduler_id)
  is_current = score and string.match(job_id, "^repeat:.*:(%d+)$") == score
else
  is_current = is_next_run(prefix, job_id, scheduler_id)
end
if not is_current then
  return { "", "" } -- removed, replaced, or this is a retry
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

-- Return whether an unrelated job has the id of the run at `due`.
local function is_unrelated()
  local key = string.format("%srepeat:%s:%.0f", prefix, is_old and old_part or scheduler_id, due)
  return redis.call("EXISTS", key) == 1 and redis.pcall("HGET", key, "rjk") ~= scheduler_id
end
local MOST, passed = 100, ""
for tries = 1, MOST do
  if not is_unrelated() then
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

-- All or nothing: otherwise the scheduler would assume that the run exists, and stop.
local is_added, problem = pcall(add)
if not is_added then
  redis.pcall("ZADD", schedulers, last, scheduler_id)
  undo_add(prefix, run.id, { delayed, prioritized }, queue.target)
  error(problem, 0)
end
redis.call("XTRIM", events, "MAXLEN", "~", event_limit(meta, queue))
return { run.id, passed }
