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
-- RETURNS
--   the id of the run that was added; "": none, as the scheduler is gone, or has gone on already
-- EFFECTS
--   as those of BullMQ 6; a scheduler that has no data passes on those of the run

local schedulers, scheduler, job, meta, wait, paused, active, prioritized, delayed, events =
  unpack(KEYS)
local prefix, scheduler_id, job_id, now, count, due = unpack(ARGV)

--- @include "current_iteration"
--- @include "finite"
--- @include "next_slot"
--- @include "queue_state"
--- @include "event_limit"
--- @include "make_run"
--- @include "add_run"
--- @include "undo_add"

if not current_iteration(prefix, job_id, scheduler_id) then
  return "" -- it was removed, or replaced, or a retry of this run is taken
end
local taken = redis.call("HMGET", job, "name", "data", "opts")
if not taken[3] then
  return ""
end
local known = redis.call("HMGET", scheduler, "name", "data", "every", "offset")
local name, data = known[1] or taken[1] or "", known[2] or taken[2] or "{}"
local readable, opts = pcall(cjson.decode, taken[3])
if not readable or type(opts) ~= "table" or type(opts["repeat"]) ~= "table" then
  return ""
end

now, count = tonumber(now), tonumber(count)
local last = finite(redis.call("ZSCORE", schedulers, scheduler_id))
local is_cron = due ~= ""
if is_cron then
  due = tonumber(due)
else
  local every = finite(known[3] or opts["repeat"].every) or 0
  if every < 1 then
    return ""
  end
  due = next_slot(last, every, finite(known[4]) or 0, now)
end

opts.attempts = opts.attempts or 0
if type(opts.backoff) == "number" then
  opts.backoff = { type = "fixed", delay = opts.backoff }
end
local run = make_run(scheduler_id, now, due, opts, count, is_cron)
if not run then
  return ""
end
local queue = queue_state(meta, active, wait, paused)
if redis.call("EXISTS", prefix .. run.id) == 1 then
  redis.call("XADD", events, "MAXLEN", "~", event_limit(meta, queue), "*", "event", "duplicated",
    "jobId", run.id)
  return ""
end
local function add()
  add_run(prefix, queue, scheduler_id, now, run, name, data)
  redis.call("HINCRBY", scheduler, "ic", 1)
end

-- All or nothing: else the scheduler would take the run for added, and end.
local is_added, problem = pcall(add)
if not is_added then
  redis.pcall("ZADD", schedulers, last, scheduler_id)
  undo_add(prefix, run.id, { delayed, prioritized }, queue.target)
  error(problem, 0)
end
redis.call("XTRIM", events, "MAXLEN", "~", event_limit(meta, queue))
return run.id
