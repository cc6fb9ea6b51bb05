-- store_step: store the result of a finished step of a running job.
--
-- KEYS
--   job    hash     the job
--   lock   string   the job's lock
--   steps  hash     the job's steps
-- ARGV
--   token           token of the job's lock
--   life            ms to keep the job's steps
--   field           the step
--   record          JSON
-- RETURNS
--   0, or the reason for refusing: -1 no such job, -2 no lock, -6 another worker's lock

local job, lock, steps = unpack(KEYS)
local token, life, field, record = unpack(ARGV)

--- @include "check_job"
--- @include "claim_steps"
--- @include "keep_steps"

local refused = check_job(job, lock, token)
if refused ~= 0 then
  return refused
end
claim_steps(job, steps, life)
redis.call("HSET", steps, field, record)
keep_steps(job, steps, life)
return 0
