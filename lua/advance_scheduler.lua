-- advance_scheduler: add the run of a job scheduler that follows the one that was just taken.
--
-- KEYS
--   schedulers         zset     job schedulers, by the ms of the run that comes next
--   scheduler          hash     what this one is: name, data, every, offset, ...
--   job                hash     the run that was taken
--   counter            string   number of the last job
--   meta               hash     settings of the queue
--   wait               list     jobs that may run, taken from the tail
--   paused             list     the same while the queue is paused
--   active             list     jobs that run
--   prioritized        zset     jobs that may run, by priority
--   priority_counter   string   keeps jobs of equal priority in order
--   delayed            zset     jobs that may run later
--   marker             zset     wakes workers
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

local schedulers, scheduler, job, counter, meta, wait, paused, active, prioritized,
  priority_counter, delayed, marker, events = unpack(KEYS)
local prefix, scheduler_id, job_id, now, count, due = unpack(ARGV)

--- @include "current_iteration"
--- @include "finite"
--- @include "next_slot"
--- @include "queue_state"
--- @include "event_limit"
--- @include "push_job"
--- @include "undo_add"
--- @include "delayed_score"
--- @include "mark_delay"

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
if due == "" then
  local every = finite(known[3] or opts["repeat"].every) or 0
  if every < 1 then
    return ""
  end
  due = next_slot(last, every, finite(known[4]) or 0, now)
  opts.prevMillis = nil
else
  due = tonumber(due)
  opts.prevMillis = due
end

local id = string.format("repeat:%s:%.0f", scheduler_id, due)
local queue = queue_state(meta, active, wait, paused)
if redis.call("EXISTS", prefix .. id) == 1 then
  redis.call("XADD", events, "MAXLEN", "~", event_limit(meta, queue), "*", "event", "duplicated",
    "jobId", id)
  return ""
end

local delay = math.max(0, due - now)
local priority = finite(opts.priority) or 0
opts.jobId, opts.delay, opts.timestamp, opts.repeatJobKey = id, delay, now, scheduler_id
opts["repeat"].count = count
opts.attempts = opts.attempts or 0
if type(opts.backoff) == "number" then
  opts.backoff = { type = "fixed", delay = opts.backoff }
end

local is_json, text = pcall(cjson.encode, opts)
if not is_json then -- it has an infinite number, or is nested too deeply
  return ""
end
local function add()
  redis.call("ZADD", schedulers, due, scheduler_id)
  redis.call("HINCRBY", scheduler, "ic", 1)
  redis.call("INCR", counter)
  redis.call("HSET", prefix .. id, "name", name, "data", data, "opts", text,
    "timestamp", now, "delay", delay, "priority", priority, "rjk", scheduler_id)
  if type(opts.de) == "table" and type(opts.de.id) == "string" then
    redis.call("HSET", prefix .. id, "deid", opts.de.id) -- it is noted, but stops no other job
  end
  redis.call("XADD", events, "*", "event", "added", "jobId", id, "name", name)
  if delay > 0 then
    redis.call("ZADD", delayed, delayed_score(delayed, due), id)
    redis.call("XADD", events, "*", "event", "delayed", "jobId", id, "delay", due)
    mark_delay(marker, delayed)
  else
    push_job(queue, id, priority, opts.lifo == true, prioritized, priority_counter, marker)
    redis.call("XADD", events, "*", "event", "waiting", "jobId", id)
  end
end

-- All or nothing: else the scheduler would take the run for added, and end.
local is_added, problem = pcall(add)
if not is_added then
  redis.pcall("ZADD", schedulers, last, scheduler_id)
  undo_add(prefix, id, { delayed, prioritized }, queue.target)
  error(problem, 0)
end
redis.call("XTRIM", events, "MAXLEN", "~", event_limit(meta, queue))
return id
