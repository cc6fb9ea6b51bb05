-- add_log: add a line to a job's log.
--
-- KEYS
--   job    hash     the job
--   lock   string   the job's lock
--   logs   list     log lines, oldest first
-- ARGV
--   token           token of the job's lock, or "0" to skip the check
--   line
--   keep            number of lines to keep, or 0 for all
-- RETURNS
--   number of lines now, or the reason for refusing: -1 no such job, -2 no lock, -6 another
--   worker's lock

local job, lock, logs = unpack(KEYS)
local token, line, keep = unpack(ARGV)

--- @include "check_job"

local refused = check_job(job, lock, token)
if refused ~= 0 then
  return refused
end
local count = redis.call("RPUSH", logs, line)
keep = tonumber(keep)
if keep <= 0 then
  return count
end
redis.call("LTRIM", logs, -keep, -1)
return math.min(count, keep)
