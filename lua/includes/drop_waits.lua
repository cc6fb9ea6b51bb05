--- @include "is_child"
--- @include "delete_job"

-- drop_waits(prefix, job, delayed): remove the child jobs of a job's waits. If the job is retried,
-- its waits begin again.
local function drop_waits(prefix, job, delayed)
  local children = redis.call("SMEMBERS", job .. ":dependencies")
  for i = 1, #children do
    local child = children[i]
    if string.sub(child, 1, #job + 1) == job .. "-" and is_child(child, job)
      and redis.call("HGET", child, "name") == "taskbull.wait"
      and redis.call("ZREM", delayed, string.sub(child, #prefix + 1)) == 1 then
      redis.call("SREM", job .. ":dependencies", child)
      delete_job(child)
    end
  end
end
