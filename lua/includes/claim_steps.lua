--- @include "are_own_steps"

-- claim_steps(job, steps, life): prepare the hash of a job's steps for a write. Delete the steps of
-- an earlier job with its id. A new hash expires after `life` ms.
local function claim_steps(job, steps, life)
  if not are_own_steps(job, steps) then
    redis.call("DEL", steps)
    redis.call("HSET", steps, "job", redis.call("HGET", job, "timestamp") or "")
    redis.call("PEXPIRE", steps, life)
  end
end
