-- note_unclaimed: note that a worker has no task for a job, and tell for how long that is known.
--
-- KEYS
--   job     hash   the job
-- ARGV
--   now            ms
--   patience       ms after which the job is given up
--   pause          ms without a note after which the time counts from now: it was claimed meanwhile
-- RETURNS
--   for how many ms that is known by now; -1 if there is no such job
-- EFFECTS
--   the field tbun has the first and the last note, or is gone when the patience is over: a job
--   that is retried by hand then waits as long again

local job = unpack(KEYS)
local now, patience, pause = unpack(ARGV)

--- @include "is_hash"

if not is_hash(job) then
  return -1
end
now = tonumber(now)
local first, last = string.match(redis.call("HGET", job, "tbun") or "", "^(%d+):(%d+)$")
first, last = tonumber(first or now), tonumber(last or now)
if first > now or now - last > tonumber(pause) then
  first = now
end
if now - first >= tonumber(patience) then
  redis.call("HDEL", job, "tbun")
else
  redis.call("HSET", job, "tbun", string.format("%.0f:%.0f", first, now))
end
return now - first
