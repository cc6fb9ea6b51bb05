--- @include "finite"
--- @include "delayed_score"
--- @include "mark_delay"
--- @include "push_job"

-- add_run(prefix, queue, scheduler_id, now, run, name, data): add a run as its job scheduler's
-- next. `queue` is from queue_state, `run` from make_run.
local function add_run(prefix, queue, scheduler_id, now, run, name, data)
  local id, opts, events, marker = run.id, run.opts, prefix .. "events", prefix .. "marker"
  local priority = finite(opts.priority) or 0
  redis.call("ZADD", prefix .. "repeat", run.due, scheduler_id)
  redis.call("INCR", prefix .. "id")
  redis.call("HSET", prefix .. id, "name", name, "data", data, "opts", run.text,
    "timestamp", now, "delay", opts.delay, "priority", priority, "rjk", scheduler_id)
  if type(opts.de) == "table" and type(opts.de.id) == "string" then
    redis.call("HSET", prefix .. id, "deid", opts.de.id) -- stored, but blocks no other job
  end
  redis.call("XADD", events, "*", "event", "added", "jobId", id, "name", name)
  if opts.delay > 0 then
    local delayed = prefix .. "delayed"
    redis.call("ZADD", delayed, delayed_score(delayed, run.due), id)
    redis.call("XADD", events, "*", "event", "delayed", "jobId", id, "delay", run.due)
    mark_delay(marker, delayed)
  else
    local is_front = opts.lifo == true
    push_job(queue, id, priority, is_front, prefix .. "prioritized", prefix .. "pc", marker)
    redis.call("XADD", events, "*", "event", "waiting", "jobId", id)
  end
end
