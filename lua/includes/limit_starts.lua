--- @include "finite"
--- @include "typed"

-- limit_starts(limiter, starts) -> how many jobs may start in this window of `starts`, and for how
-- many ms none may (0: some may).
local function limit_starts(limiter, starts)
  local started = finite(typed(redis.pcall("GET", limiter))) or 0
  if started >= starts then
    local ttl = redis.call("PTTL", limiter)
    if ttl > 0 then
      return 0, ttl
    end
    redis.call("DEL", limiter) -- it is over, or would never be
    started = 0
  end
  return math.max(starts - math.floor(started), 0), 0
end
