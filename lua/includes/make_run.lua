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
