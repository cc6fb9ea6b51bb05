-- rate_limit_ttl: tell how long the queue starts no job because of its rate limit.
--
-- KEYS
--   limiter    string   jobs started in the current window
--   meta       hash     settings of the queue
-- ARGV
--   max_jobs            limit of a worker; 0: it has none
-- RETURNS
--   ms; 0 if jobs may start; without any limit the rest of the window, negative if there is none

local limiter, meta = unpack(KEYS)
local max_jobs = unpack(ARGV)

--- @include "finite"

local most = tonumber(max_jobs)
if most == 0 then
  most = finite(redis.call("HGET", meta, "max"))
end
if most and (finite(redis.call("GET", limiter)) or 0) < most then
  return 0
end
return redis.call("PTTL", limiter)
