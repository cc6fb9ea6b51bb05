--- @include "names_own_key"

-- count_stall(prefix, id, max_stalls, schedulers) -> whether there is such a job, and whether it
-- has stalled too often, so that the next worker fails it. The run of a scheduler that is still
-- there never does: without it the scheduler would stop.
local function count_stall(prefix, id, max_stalls, schedulers)
  local key = prefix .. id
  local fields = redis.pcall("HMGET", key, "name", "stc", "rjk")
  if fields.err or names_own_key(id)
    or not fields[1] and redis.call("EXISTS", key) == 0 then
    return false, false
  end
  local stalls = (tonumber(fields[2]) or 0) + 1
  if stalls <= max_stalls or fields[3] and redis.call("ZSCORE", schedulers, fields[3]) then
    redis.call("HSET", key, "stc", stalls)
    return true, false
  end
  redis.call("HSET", key, "stc", stalls, "defa", "job stalled more than allowable limit")
  return true, true
end
