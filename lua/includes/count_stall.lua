--- @include "finite"
--- @include "is_cancelled"
--- @include "typed"
--- @include "names_own_key"

-- count_stall(prefix, id, max_stalls, schedulers) -> how often the job has stalled (0 if it does
-- not exist), and the reason for the next worker to fail it, or nil: it stalled too often, or was
-- cancelled. Runs of an existing scheduler never stall too often, because the scheduler would stop
-- without them.
local function count_stall(prefix, id, max_stalls, schedulers)
  local key = prefix .. id
  local fields = typed(redis.pcall("HMGET", key, "name", "stc", "rjk", "defa"))
  if not fields or names_own_key(id) or not fields[1] and redis.call("EXISTS", key) == 0 then
    return 0
  end
  local stalls = math.max(0, math.floor(finite(fields[2]) or 0)) + 1
  if is_cancelled(fields[4]) then
    return stalls, fields[4]
  end
  local is_doomed = stalls > max_stalls
    and not (fields[3] and redis.call("ZSCORE", schedulers, fields[3]))
  return stalls, is_doomed and "job stalled more than allowable limit" or nil
end
