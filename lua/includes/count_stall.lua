--- @include "finite"
--- @include "typed"
--- @include "names_own_key"

-- count_stall(prefix, id, max_stalls, schedulers) -> how often the job has stalled, 0 if it is not
-- there; and whether that is too often, so that the next worker fails it. The run of a scheduler
-- that is still there never does: without it the scheduler would stop.
local function count_stall(prefix, id, max_stalls, schedulers)
  local key = prefix .. id
  local fields = typed(redis.pcall("HMGET", key, "name", "stc", "rjk"))
  if not fields or names_own_key(id) or not fields[1] and redis.call("EXISTS", key) == 0 then
    return 0, false
  end
  local stalls = math.max(0, math.floor(finite(fields[2]) or 0)) + 1
  local is_doomed = stalls > max_stalls
    and not (fields[3] and redis.call("ZSCORE", schedulers, fields[3]))
  return stalls, is_doomed
end
