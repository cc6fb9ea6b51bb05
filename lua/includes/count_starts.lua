--- @include "finite"

-- count_starts(limiter, meta, started, window): count jobs that started in the current window of
-- `window` ms, or of the queue's duration if 0.
local function count_starts(limiter, meta, started, window)
  local count = redis.pcall("INCRBY", limiter, started)
  if type(count) == "table" then -- not a number
    redis.pcall("SET", limiter, started)
    count = started
  end
  if count == started then
    if window <= 0 then
      window = math.floor(math.abs(finite(redis.call("HGET", meta, "duration")) or 0))
    end
    redis.pcall("PEXPIRE", limiter, window)
  end
end
