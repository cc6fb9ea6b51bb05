--- @include "finite"
--- @include "delayed_score"
--- @include "add_delay_marker"
--- @include "push_job"

-- next_slot(last, every, offset, now) -> ms of the run after `last`: `every` ms later or, if that
-- is past, the first time after `now` that is `offset` past a multiple of `every`.
local function next_slot(last, every, offset, now)
  local slot = last + every
  if slot < now then
    slot = math.floor(now / every) * every + offset
    if slot <= now then
      slot = slot + every
    end
  end
  return math.floor(slot)
end

-- make_run(scheduler_id, now, due, opts, count, is_cron, old_part) -> {id, due, opts, text}: run
-- number `count` of a job scheduler, or nil if its options cannot be encoded as JSON. `opts` are
-- from the previous run, or from the template with the rule in `repeat`, and are changed.
-- `old_part` is in the run ids of a repeatable job of BullMQ 3 and 4; nil for a scheduler.
local function make_run(scheduler_id, now, due, opts, count, is_cron, old_part)
  local id = string.format("repeat:%s:%.0f", old_part or scheduler_id, due)
  opts.jobId, opts.delay, opts.timestamp = id, math.max(0, due - now), now
  opts.repeatJobKey = not old_part and scheduler_id or nil
  opts.prevMillis = (is_cron or old_part) and due or nil
  opts["repeat"].count = count
  local is_json, text = pcall(cjson.encode, opts) -- fails for infinity or deep nesting
  return is_json and { id = id, due = due, opts = opts, text = text } or nil
end

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
    add_delay_marker(marker, delayed)
  else
    local is_front = opts.lifo == true
    push_job(queue, id, priority, is_front, prefix .. "prioritized", prefix .. "pc", marker)
    redis.call("XADD", events, "*", "event", "waiting", "jobId", id)
  end
end
