-- rate_limit_ttl: return how long the rate limit stops the queue from starting jobs.
--
-- KEYS
--   limiter    string   number of jobs started in the current window
--   meta       hash     queue settings
-- ARGV
--   max_jobs            the worker's limit, or 0 to use the queue's
-- RETURNS
--   ms, or 0 if jobs may start. Without a limit, the rest of the window, negative if there is none

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
