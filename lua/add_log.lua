-- add_log: add a line to a job's log.
--
-- KEYS
--   job    hash   the job
--   logs   list   its lines, oldest first
-- ARGV
--   line
--   keep          how many lines are kept, the last ones; 0: all
-- RETURNS
--   how many lines there are now, or -1 if there is no such job

local job, logs = unpack(KEYS)
local line, keep = unpack(ARGV)

--- @include "is_hash"

if not is_hash(job) then
  return -1
end
local count = redis.call("RPUSH", logs, line)
if tonumber(keep) == 0 then
  return count
end
redis.call("LTRIM", logs, -keep, -1)
return math.min(count, keep)
