-- are_own_steps(job, steps) -> whether the steps are those of this job. BullMQ removes a job, but
-- not its steps, and another job may get its id.
local function are_own_steps(job, steps)
  local added = redis.call("HGET", job, "timestamp") or ""
  return redis.call("HGET", steps, "job") == added
end
