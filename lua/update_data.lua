-- update_data: replace a job's data.
--
-- KEYS
--   job   hash   the job
-- ARGV
--   data         JSON
-- RETURNS
--   0, or -1 if there is no such job

local job = unpack(KEYS)
local data = unpack(ARGV)

--- @include "is_hash"

if not is_hash(job) then
  return -1
end
redis.call("HSET", job, "data", data)
return 0
