-- get_steps: read everything stored about the steps of a job.
--
-- KEYS
--   job     hash   the job
--   steps   hash   the job's steps
-- RETURNS
--   fields         field, value, ...

local job, steps = unpack(KEYS)

--- @include "are_own_steps"

return are_own_steps(job, steps) and redis.call("HGETALL", steps) or {}
