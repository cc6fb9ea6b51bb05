--- @include "finite"

-- event_limit(meta, queue) -> approximate number of events to keep. The default is stored in `meta`
-- if it has no value. `queue` is from queue_state, or nil.
local function event_limit(meta, queue)
  local limit = queue and queue.max_events
  if not queue then
    limit = redis.call("HGET", meta, "opts.maxLenEvents")
  end
  if not limit then
    redis.pcall("HSET", meta, "opts.maxLenEvents", 10000) -- if refused, the next call retries
  end
  if limit and #limit < 16 and string.find(limit, "^[1-9]%d*$") then
    -- As text, because formatting a Lua number costs Redis as much as a command.
    return limit
  end
  limit = finite(limit)
  return limit and limit >= 0 and math.floor(limit) or 10000
end
