--- @include "delete_job"
--- @include "event_limit"
--- @include "failed_bounds"
--- @include "is_denied"
--- @include "leave_children"
--- @include "leave_place"
--- @include "queue_keys"
--- @include "queue_state"
--- @include "relatives"
--- @include "trim_finished"

-- end_unstarted(base, id, place, reason, now, parents): permanently fail a job that waits in the
-- set or list `place`, without an attempt. The set of its pending children is pushed to `parents`,
-- for cancel_children. If a command is refused, the job is still in its place or has failed.
local function end_unstarted(base, id, place, reason, now, parents)
  local LIFE, MOST_TRIMMED = 86400000, 100
  local key, keys, none, kin = base .. id, queue_keys(base), base .. "tb:none", relatives()
  local opts, parent_key, dedup_name = unpack(redis.call("HMGET", key, "opts", "parentKey", "deid"))
  local keep, queue = failed_bounds(opts), queue_state(keys.meta, keys.active, keys.wait)

  -- Raise, before anything is written, if a command below would be refused.
  redis.call("ZADD", keys.failed, "XX", 0, "")
  redis.call("XTRIM", keys.events, "MAXLEN", "~", event_limit(keys.meta, queue))
  redis.call("XADD", none, "NOMKSTREAM", "*", "event", "none")
  redis.call("LREM", none, 1, "")
  redis.call("ZREM", none, "")
  redis.call("HDEL", none, "")
  redis.call("DEL", none)
  redis.call("PEXPIRE", none, 1)

  local is_kept = keep[1] ~= 0
  leave_children(base, id, is_kept, parents)
  if parent_key then
    local is_told, problem = pcall(kin.tell_failed, key, parent_key, reason, now)
    problem = type(problem) == "table" and problem.err or tostring(problem)
    if not is_told and is_denied(problem) then
      error(problem, 0)
    end
  end
  if dedup_name then
    kin.end_deduplication(base, id, dedup_name)
    kin.add_kept_last(base, dedup_name, keys, queue, now)
  end
  if is_kept then
    redis.call("HSET", key, "failedReason", reason, "finishedOn", now)
    redis.call("ZADD", keys.failed, now, id)
  else
    redis.call("SET", base .. "tb:cancelling:" .. id .. ":at", now, "PX", LIFE)
    if parent_key then
      kin.leave_parent(base, key, parent_key, false)
    end
  end
  local prev = (place == "wait" or place == "paused") and "waiting" or place
  redis.call("XADD", keys.events, "*", "event", "failed", "jobId", id, "failedReason", reason,
    "prev", prev)
  leave_place(base, place, id)
  if not is_kept then
    delete_job(key)
    return
  end
  redis.call("HDEL", key, "defa")
  if keep[1] > 0 or keep[2] >= 0 then
    -- The next call removes the rest.
    pcall(trim_finished, base, keys.failed, keep, kin.leave_parent, now, MOST_TRIMMED)
  end
end
