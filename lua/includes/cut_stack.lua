--- @include "typed"

-- cut_stack(job) -> the first 300 and last 600 bytes of a job's newest stack, as encoded in JSON,
-- and the number of bytes read. Empty if there is no stack, or if all together exceed 64 kB.
local function cut_stack(job)
  local size = typed(redis.pcall("HSTRLEN", job, "stacktrace"))
  if not size or size < 3 or size > 65536 then
    return "", "", 0
  end
  local stacks = redis.call("HGET", job, "stacktrace")
  -- JSON escapes quotes inside a string, so this sequence only occurs between two strings.
  local first, at = 2, string.find(stacks, "\",\"", 1, true)
  while at do
    first, at = at + 2, string.find(stacks, "\",\"", at + 2, true)
  end
  local newest = string.sub(stacks, first + 1, -3)
  return string.sub(newest, 1, 300), string.sub(newest, -600), size
end
