--- @include "typed"

-- cut_stack(job) -> the first 300 and the last 600 bytes of a job's newest stack, as they stand in
-- JSON, and how many bytes were read; empty if there is none, or if all have more than 64 kB.
local function cut_stack(job)
  local size = typed(redis.pcall("HSTRLEN", job, "stacktrace"))
  if not size or size < 3 or size > 65536 then
    return "", "", 0
  end
  local stacks = redis.call("HGET", job, "stacktrace")
  -- Within a string of JSON a quote has a backslash before it, so that this stands between two.
  local first, at = 2, string.find(stacks, "\",\"", 1, true)
  while at do
    first, at = at + 2, string.find(stacks, "\",\"", at + 2, true)
  end
  local newest = string.sub(stacks, first + 1, -3)
  return string.sub(newest, 1, 300), string.sub(newest, -600), size
end
