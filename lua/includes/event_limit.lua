-- event_limit(meta, queue) -> about how many events are kept; noted in `meta` where nobody has said
-- it yet. `queue` is what queue_state gave, or nil where it was not asked.
local function event_limit(meta, queue)
  local limit = queue and queue.max_events
  if not queue then
    limit = redis.call("HGET", meta, "opts.maxLenEvents")
  end
  if not limit then
    limit = 10000
    redis.call("HSET", meta, "opts.maxLenEvents", limit)
  end
  return limit
end
