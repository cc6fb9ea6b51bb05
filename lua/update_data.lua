-- update_data: replace a job's data.
--
-- KEYS
--   job    hash     the job
--   lock   string   the job's lock
-- ARGV
--   token           token of the job's lock, or "0" to skip the check
--   data            JSON
-- RETURNS
--   0, or the reason for refusing: -1 no such job, -2 no lock, -6 another worker's lock

local job, lock = unpack(KEYS)
local token, data = unpack(ARGV)

--- @include "check_job"

local refused = check_job(job, lock, token)
if refused ~= 0 then
  return refused
end
redis.call("HSET", job, "data", data)
return 0
