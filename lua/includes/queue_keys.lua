-- queue_keys(prefix) -> a queue's keys, by name.
local function queue_keys(prefix)
  return { meta = prefix .. "meta", wait = prefix .. "wait", paused = prefix .. "paused",
    active = prefix .. "active", prioritized = prefix .. "prioritized",
    priority_counter = prefix .. "pc", delayed = prefix .. "delayed",
    completed = prefix .. "completed", failed = prefix .. "failed",
    stalled = prefix .. "stalled", limiter = prefix .. "limiter", marker = prefix .. "marker",
    events = prefix .. "events", counter = prefix .. "id" }
end
