-- make_run(scheduler_id, now, due, opts, count, is_cron) -> {id, due, opts, text}: a run of a job
-- scheduler with its number `count`; nil if its options cannot be written as JSON. `opts` are
-- those of the run before, or of the template with the rule in `repeat`, and are changed.
local function make_run(scheduler_id, now, due, opts, count, is_cron)
  local id = string.format("repeat:%s:%.0f", scheduler_id, due)
  opts.jobId, opts.delay, opts.timestamp = id, math.max(0, due - now), now
  opts.repeatJobKey, opts.prevMillis = scheduler_id, is_cron and due or nil
  opts["repeat"].count = count
  local is_json, text = pcall(cjson.encode, opts) -- no infinite number, not nested too deeply
  return is_json and { id = id, due = due, opts = opts, text = text } or nil
end
