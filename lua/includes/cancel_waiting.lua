--- @include "is_next_run"
--- @include "is_cancelled"
--- @include "is_hash"
--- @include "is_reserved_id"
--- @include "delete_job"
--- @include "end_stream"
--- @include "event_limit"
--- @include "failed_bounds"
--- @include "is_denied"
--- @include "queue_child_cancels"
--- @include "queue_keys"
--- @include "queue_state"
--- @include "parent_functions"
--- @include "trim_finished"

-- find_state(base, id, longest) -> the name of the set or list that holds a job, or nil. Waiting
-- lists longer than `longest` are not searched: "long" means that the job may be in one of them.
local function find_state(base, id, longest)
  local sets = { "completed", "failed", "delayed", "prioritized", "waiting-children" }
  for i = 1, #sets do
    if redis.call("ZSCORE", base .. sets[i], id) then
      return sets[i]
    end
  end
  if redis.call("LPOS", base .. "active", id) then
    return "active"
  end
  local lists, is_long = { "wait", "paused" }, false
  for i = 1, #lists do
    local length = redis.call("LLEN", base .. lists[i])
    if length > longest then
      is_long = true
    elseif length > 0 and redis.call("LPOS", base .. lists[i], id) then
      return lists[i]
    end
  end
  return is_long and "long" or nil
end

-- fail_waiting_job(base, id, state, reason, now, parents): permanently fail a job that waits in the
-- set or list `state`, without an attempt. The set of its pending children is pushed to `parents`,
-- for cancel_children. If a command is refused, the job is still in its place or has failed.
local function fail_waiting_job(base, id, state, reason, now, parents)
  local LIFE, MOST_TRIMMED = 86400000, 100
  local key, keys, none = base .. id, queue_keys(base), base .. "tb:none"
  local functions = parent_functions()
  local opts, parent_key, dedup_name, stream =
    unpack(redis.call("HMGET", key, "opts", "parentKey", "deid", "tbst"))
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
  queue_child_cancels(base, id, is_kept, parents)
  if parent_key then
    local is_notified, problem = pcall(functions.notify_failed, key, parent_key, reason, now)
    problem = type(problem) == "table" and problem.err or tostring(problem)
    if not is_notified and is_denied(problem) then
      error(problem, 0)
    end
  end
  if dedup_name then
    functions.end_deduplication(base, id, dedup_name)
    functions.add_kept_last(base, dedup_name, keys, queue, now)
  end
  if is_kept then
    redis.call("HSET", key, "failedReason", reason, "finishedOn", now)
    redis.call("ZADD", keys.failed, now, id)
  else
    redis.call("SET", base .. "tb:cancelling:" .. id .. ":at", now, "PX", LIFE)
    if parent_key then
      functions.detach_from_parent(base, key, parent_key, false)
    end
  end
  local is_listed = state == "wait" or state == "paused"
  redis.call("XADD", keys.events, "*", "event", "failed", "jobId", id, "failedReason", reason,
    "prev", is_listed and "waiting" or state)
  if is_listed then
    local list = base .. state
    -- Search from the nearer end.
    local is_near_head = 2 * (redis.call("LPOS", list, id) or 0) < redis.call("LLEN", list)
    redis.call("LREM", list, is_near_head and 1 or -1, id)
  else
    redis.call("ZREM", base .. state, id)
  end
  end_stream(key, stream, "failed", reason)
  if not is_kept then
    delete_job(key, true)
    return
  end
  redis.call("HDEL", key, "defa")
  if keep[1] > 0 or keep[2] >= 0 then
    -- The next call removes the rest.
    pcall(trim_finished, base, keys.failed, keep, functions.detach_from_parent, now, MOST_TRIMMED)
  end
end

-- notify_hooks(base, id, name, data, reason): put a job that failed without a worker into a list.
-- One of the workers with hooks takes it from there. If there are any, `tb:hooks` exists.
local function notify_hooks(base, id, name, data, reason)
  local MOST_ENDED, MOST_REQUESTS, DAY, HOUR = 10000, 1000, 86400000, 3600000
  local ended, requests = base .. "tb:ended", base .. "tb:cancel"
  redis.pcall("RPUSH", ended, id, name, #data <= 65536 and data or "{}", reason)
  redis.pcall("LTRIM", ended, -4 * MOST_ENDED, -1)
  redis.pcall("PEXPIRE", ended, DAY)
  redis.pcall("XADD", requests, "MAXLEN", "~", MOST_REQUESTS, "*", "ended", id)
  redis.pcall("PEXPIRE", requests, HOUR)
end

-- cancel_waiting(base, id, reason, now, longest, parents) -> "ended" if the job has failed now.
-- "marked" if the next worker that fetches it fails it: it is a scheduler's next run, and the
-- scheduler would stop without it, or its list is longer than `longest`. "active", "completed" or
-- "failed" if nothing was done. nil if there is no such job. For `parents`, see fail_waiting_job.
local function cancel_waiting(base, id, reason, now, longest, parents)
  local key = base .. id
  if is_reserved_id(id) or not is_hash(key) then
    return nil
  end
  local state = find_state(base, id, longest)
  if not state or state == "active" or state == "completed" or state == "failed" then
    return state
  end
  local scheduler, deferred_failure, name, data =
    unpack(redis.call("HMGET", key, "rjk", "defa", "name", "data"))
  if state == "long" or is_next_run(base, id, scheduler) then
    if not is_cancelled(deferred_failure) then
      redis.call("HSET", key, "defa", reason)
    end
    return "marked"
  end
  fail_waiting_job(base, id, state, reason, now, parents)
  if redis.pcall("EXISTS", base .. "tb:hooks") == 1 then
    notify_hooks(base, id, name or "", data or "{}", reason)
  end
  return "ended"
end
