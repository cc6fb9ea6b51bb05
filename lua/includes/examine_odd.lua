-- examine_odd(prefix, id, fields, failed, events, now) -> whether a waiting id with no `timestamp`
-- or with non-ASCII bytes is a job that can run. A job whose id is not UTF-8 fails here, because
-- its id cannot be sent to a worker.
local function examine_odd(prefix, id, fields, failed, events, now)
  --- @include "is_text"
  --- @include "names_other_key"
  if not fields[4] and names_other_key(id) then
    return false
  elseif is_text(id) then
    return true
  end
  local reason = "its id is not UTF-8"
  redis.call("HSET", prefix .. id, "failedReason", reason, "finishedOn", now)
  redis.call("ZADD", failed, now, id)
  redis.call("XADD", events, "*", "event", "failed", "jobId", id, "failedReason", reason,
    "prev", "waiting")
  return false
end
