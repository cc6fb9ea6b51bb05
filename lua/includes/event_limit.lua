-- event_limit(meta) -> about how many events the queue keeps.
local function event_limit(meta)
  local limit = redis.call("HGET", meta, "opts.maxLenEvents")
  if not limit then
    limit = 10000
    redis.call("HSET", meta, "opts.maxLenEvents", limit)
  end
  return limit
end
