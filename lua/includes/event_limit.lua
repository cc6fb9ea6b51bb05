--- @include "finite"

-- event_limit(meta, queue) -> about how many events are kept; noted in `meta` where nobody has said
-- it yet. `queue` is what queue_state gave, or nil where it was not asked.
local function event_limit(meta, queue)
  local limit = queue and queue.max_events
  if not queue then
    limit = redis.call("HGET", meta, "opts.maxLenEvents")
  end
  if not limit then
    redis.pcall("HSET", meta, "opts.maxLenEvents", 10000) -- or the next one does
  end
  if limit and #limit < 16 and string.find(limit, "^[1-9]%d*$") then
    return limit -- as text: Redis prints each number of Lua's, which costs as much as a command
  end
  limit = finite(limit)
  return limit and limit >= 0 and math.floor(limit) or 10000
end
