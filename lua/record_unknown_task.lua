-- record_unknown_task: record that a worker has no task for a job.
--
-- KEYS
--   job     hash   the job
-- ARGV
--   now            ms
--   patience       ms until the worker gives up the job
--   pause          restart the time after this many ms without a note, because a worker claimed the
--                  job
-- RETURNS
--   ms since the first note, or -1 if there is no such job
-- EFFECTS
--   the field `tbun` has the time of the first and last note. It is deleted after `patience`, so
--   that a job retried by hand waits as long again

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
