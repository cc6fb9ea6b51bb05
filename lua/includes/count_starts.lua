--- @include "finite"

-- count_starts(limiter, meta, started, window): count jobs that started in the current window; its
-- length is `window` ms, or what the queue says (0).
local function count_starts(limiter, meta, started, window)
  local count = redis.pcall("INCRBY", limiter, started)
  if type(count) == "table" then -- it was no number
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
