--- @include "check_lock"
--- @include "is_hash"

-- check_job(job, lock, token) -> 0 if a caller with this token may change the job, -1 if there is
-- no such job, or the code of check_lock.
local function check_job(job, lock, token)
  return is_hash(job) and check_lock(lock, token) or -1
end
