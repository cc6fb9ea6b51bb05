--- @include "finite"
--- @include "typed"

-- limit_starts(limiter, starts) -> how many jobs may start in this window, at most `starts`, and
-- the ms until the next one may (0 if one may now).
local function limit_starts(limiter, starts)
  local started = finite(typed(redis.pcall("GET", limiter))) or 0
  if started >= starts then
    local ttl = redis.call("PTTL", limiter)
    if ttl > 0 then
      return 0, ttl
    end
    -- The window is over, or its key would never expire.
    redis.call("DEL", limiter)
    started = 0
  end
  return math.max(starts - math.floor(started), 0), 0
end
