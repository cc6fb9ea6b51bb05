--- @include "delayed_score"
--- @include "delete_job"
--- @include "end_stream"
--- @include "event_limit"
--- @include "finite"
--- @include "is_cancelled"
--- @include "is_denied"
--- @include "is_out_of_memory"
--- @include "wake_worker"
--- @include "priority_score"
--- @include "promote_due"
--- @include "parent_functions"
--- @include "trim_finished"
--- @include "ignore_wrongtype"

-- find_wrong_type(keys) -> an error that names the first queue key (from `keys`, by name) with the
-- wrong type, or nil. If there is one, a refused write is not the job's fault.
local function find_wrong_type(keys)
  -- A "number" is a string that INCR accepts.
  local types = { "meta", "hash", "wait", "list", "paused", "list", "active", "list",
    "prioritized", "zset", "priority_counter", "number", "delayed", "zset", "completed", "zset",
    "failed", "zset", "stalled", "set", "limiter", "string", "marker", "zset", "events", "stream",
    "counter", "number" }
  for i = 1, #types, 2 do
    local key, wanted = keys[types[i]], types[i + 1]
    local found = redis.pcall("TYPE", key).ok
    local fits = found == wanted
    if wanted == "number" and found == "string" then
      fits = string.find(tostring(redis.pcall("GET", key)), "^-?%d+$")
    end
    if found and found ~= "none" and not fits then
      return "WRONGTYPE " .. key .. " is a " .. found .. ", and not a " .. wanted
    end
  end
end

-- settle_outcomes(prefix, keys, queue, outcomes, last, codes, now, is_taking) -> {full, reasons,
-- completions, failures, any_delayed, starts_blocked, unfinished, ended}: store outcomes of any
-- kind, one by one. `keys` has the queue's keys by name, and `queue` is from queue_state.
-- `outcomes` maps positions up to `last`, and each gets its code at its position in `codes`.
-- `is_taking` means that jobs are fetched next. `full` is 1 if Redis is out of memory,
-- `starts_blocked` means that the queue must not start jobs now, `unfinished` is how many
-- completions were refused because of children (-4, -9), `ended` the ids of jobs that ended.
--
-- An outcome is an array: id, token, kind, and depending on the kind
--   1 completed: value, keep
--   2 failed: reason, stacktrace, keep, attempts
--   3 retried: reason, stacktrace, delay, lifo, remembered (or -1)
--   4 snoozed: delay
--   5 given back: ms to stop the queue from starting jobs, or 0
--   6 awaits children: number spawned in total, and number of new ones
-- keep is {count, age in s, limit}, each -1 for no bound. A job of kind 3 to 6 that has been
-- cancelled fails instead and gets the code 1. Its field `defa` is then among the `reasons`.
local function settle_outcomes(prefix, keys, queue, outcomes, last, codes, now, is_taking)
  local COMPLETED, FAILED, RETRIED, SNOOZED, RELEASED, AWAITS = 1, 2, 3, 4, 5, 6
  local MOST_TRIMMED, MOST_PROMOTED = 100, 100
  local active, completed, failed, events = keys.active, keys.completed, keys.failed, keys.events
  local settled = { full = 0, reasons = {}, completions = 0, failures = 0, any_delayed = false,
    starts_blocked = false, unfinished = 0 }

  -- The jobs, in order. `check_outcome` adds the fields that are in Redis.
  local jobs, locks, family, ends = {}, {}, {}, {}
  for position = 1, last do
    local outcome = outcomes[position]
    if outcome then
      local id, token, kind = unpack(outcome, 1, 3)
      local key = prefix .. id
      jobs[#jobs + 1] = { position = position, id = id, key = key, token = token, kind = kind,
        outcome = outcome }
      locks[#locks + 1] = key .. ":lock"
      ends[kind] = true
      if kind == COMPLETED or kind == FAILED then
        family[#family + 1] = key .. ":dependencies"
      end
      if kind == COMPLETED then
        family[#family + 1] = key .. ":unsuccessful"
      end
    end
  end

  -- If finished jobs cannot be stored, the call stops here, unless Redis is out of memory. Outcomes
  -- are stored even then: Redis allows XTRIM, and after it every write.
  for kind, set in ipairs({ completed, failed }) do
    if ends[kind] and is_out_of_memory(set) then
      settled.full = 1
    end
  end
  if is_taking and not (ends[COMPLETED] or ends[FAILED]) and is_out_of_memory(keys.marker) then
    settled.full = 1
  end

  local cached
  local function functions()
    cached = cached or parent_functions()
    return cached
  end

  -- Consecutive jobs with the same outcome are added to their set together.
  local finished, finished_keep, pending, room_to_trim = nil, nil, {}, MOST_TRIMMED
  local function flush()
    if #pending > 0 then
      redis.call("ZADD", finished, unpack(pending))
      local most, age = unpack(finished_keep)
      if most >= 0 or age >= 0 then
        local detach = finished == failed and functions().detach_from_parent or nil
        -- The next call removes the rest.
        local is_trimmed, trimmed =
          pcall(trim_finished, prefix, finished, finished_keep, detach, now, room_to_trim)
        room_to_trim = room_to_trim - (is_trimmed and trimmed or 0)
      end
      pending = {}
    end
  end

  local function add_finished(set, keep, id)
    local is_same = finished == set
    for position = 1, 3 do
      is_same = is_same and keep[position] == finished_keep[position]
    end
    if not is_same then
      flush()
      finished, finished_keep = set, keep
    end
    pending[#pending + 1] = now
    pending[#pending + 1] = id
  end

  local function complete(job)
    local value, keep = unpack(job.outcome, 4)
    local id, key, is_kept = job.id, job.key, keep[1] ~= 0
    if job.parent_key then
      functions().notify_completed(key, job.parent_key, value, now)
    end
    if is_kept then
      redis.call("HSET", key, "returnvalue", value, "finishedOn", now, "atm", job.attempts)
      add_finished(completed, keep, id)
    end
    redis.call("XADD", events, "*", "event", "completed", "jobId", id, "returnvalue", value,
      "prev", "active")
    end_stream(key, job.stream, "completed")
    if not is_kept then
      delete_job(key, true)
    elseif is_cancelled(job.deferred_failure) then
      redis.call("HDEL", key, "defa") -- too late to cancel
    end
  end

  -- Delete `defa` last, so that it is still there if an earlier command is refused.
  local function fail(job, reason, stacktrace, keep, most_attempts)
    local id, key, parent_key, is_kept = job.id, job.key, job.parent_key, keep[1] ~= 0
    if is_cancelled(reason) then
      --- @include "queue_child_cancels"
      queue_child_cancels(prefix, id, is_kept, prefix .. "tb:cancelling:" .. id .. ":parents")
    elseif job.has_children then
      --- @include "drop_waits"
      drop_waits(prefix, key, keys.delayed)
    end
    if parent_key then
      functions().notify_failed(key, parent_key, reason, now)
    end
    if is_kept then
      redis.call("HSET", key, "failedReason", reason, "stacktrace", stacktrace, "finishedOn", now,
        "atm", job.attempts)
      add_finished(failed, keep, id)
    elseif parent_key then
      functions().detach_from_parent(prefix, key, parent_key, false)
    end
    redis.call("XADD", events, "*", "event", "failed", "jobId", id, "failedReason", reason,
      "prev", "active")
    if job.attempts >= most_attempts then
      redis.call("XADD", events, "*", "event", "retries-exhausted", "jobId", id,
        "attemptsMade", job.attempts)
    end
    end_stream(key, job.stream, "failed", reason)
    if is_kept then
      redis.call("HDEL", key, "defa")
    else
      delete_job(key, true)
    end
  end

  -- Fail a cancelled job that would have run again.
  local function cancel(job)
    --- @include "failed_bounds"
    -- Raises if the ZADD in flush would be refused.
    redis.call("ZADD", failed, "XX", 0, "")
    local fields = redis.call("HMGET", job.key, "opts", "stacktrace")
    local stacktrace = job.kind == RETRIED and job.outcome[5] or fields[2] or "[]"
    fail(job, job.deferred_failure, stacktrace, failed_bounds(fields[1]), math.huge)
  end

  -- A job's new list or set is written last: if an earlier command is refused, it is only active.
  local function delay_job(job, delay)
    local due = now + delay
    redis.call("HSET", job.key, "delay", delay)
    redis.call("XADD", events, "*", "event", "delayed", "jobId", job.id, "delay", due)
    redis.call("ZADD", keys.delayed, delayed_score(keys.delayed, due), job.id)
    settled.any_delayed = true
  end

  local is_promoted = false
  local function retry(job)
    local reason, stacktrace, delay, lifo, remembered = unpack(job.outcome, 4)
    local id, key = job.id, job.key
    if delay <= 0 and not is_promoted then
      promote_due(prefix, keys, queue, now, MOST_PROMOTED)
      is_promoted = true
    end
    redis.call("HSET", key, "failedReason", reason, "stacktrace", stacktrace, "atm", job.attempts)
    if remembered >= 0 then
      redis.call("HSET", key, "tbpd", remembered)
    end
    if delay > 0 then
      delay_job(job, delay)
      return
    end
    local priority = finite(redis.call("HGET", key, "priority")) or 0
    redis.call("XADD", events, "*", "event", "waiting", "jobId", id, "prev", "active")
    if priority > 0 then
      redis.call("ZADD", keys.prioritized, priority_score(priority, keys.priority_counter), id)
    else
      redis.call(lifo and "RPUSH" or "LPUSH", queue.target, id)
    end
    wake_worker(keys.marker, queue.blocked)
  end

  local function block_starts(pause)
    if pause > 0 then
      redis.call("SET", keys.limiter, "9007199254740991", "PX", pause)
      settled.starts_blocked = true
    end
  end

  local function release_job(job, pause)
    local id = job.id
    local priority = finite(redis.call("HGET", job.key, "priority")) or 0
    block_starts(pause)
    redis.call("XADD", events, "*", "event", "waiting", "jobId", id, "prev", "active")
    if priority > 0 then
      redis.call("ZADD", keys.prioritized, priority * 0x100000000, id)
    else
      -- RPUSH, because workers take from the right and this job has already waited its turn.
      redis.call("RPUSH", queue.target, id)
    end
    -- BullMQ wakes a worker only for a job without priority; others wait until a worker polls.
    wake_worker(keys.marker, queue.blocked)
  end

  -- Return 0 if the outcome may be stored, or an error code. Sets the fields that it needs.
  local function check_outcome(job, holder, any_children)
    local key = job.key
    if holder ~= job.token then
      if redis.call("EXISTS", key) == 0 then
        return -1
      end
      return holder and -6 or -2
    end
    local reply = redis.pcall("HMGET", key, "ats", "atm", "parentKey", "deid", "defa", "tbst")
    local fields = ignore_wrongtype(reply)
    local starts, attempts_made, parent_key, dedup_name, deferred_failure, stream =
      unpack(fields or {})
    if not fields or not starts and redis.call("EXISTS", key) == 0 then
      return -1
    end
    job.attempts_made, job.attempts = attempts_made, math.max(0, finite(attempts_made) or 0) + 1
    job.parent_key, job.dedup_name, job.deferred_failure = parent_key, dedup_name, deferred_failure
    job.stream, job.starts = stream, starts or 0
    job.is_cancelled = job.kind >= RETRIED and is_cancelled(deferred_failure)
    job.has_children = any_children and redis.call("EXISTS", key .. ":dependencies") == 1
    if any_children and job.kind == COMPLETED then
      if job.has_children then
        return -4
      elseif redis.call("EXISTS", key .. ":unsuccessful") == 1 then
        return -9
      end
    end
    return 0
  end

  -- Store an outcome. With `alone`, skip the parent and the deduplication id.
  local function settle(job, holder, any_children, alone)
    local kind = job.kind
    job.has_left = false
    local code = check_outcome(job, holder, any_children)
    if code ~= 0 then
      return code
    end
    if kind < COMPLETED or kind > AWAITS then
      error({ err = "no outcome has the kind " .. tostring(kind) })
    end
    if redis.call("LREM", active, -1, job.id) == 0 then
      return -3
    end
    job.has_left = true
    queue.room = queue.room + 1
    queue.blocked = queue.paused or queue.room <= 0
    if queue.has_groups and (kind == FAILED or kind == RETRIED) then
      redis.call("HSET", job.key, "tbrt", job.starts)
    end
    if alone then
      job.parent_key, job.dedup_name = false, false
    end
    if kind == COMPLETED or kind == FAILED or job.is_cancelled then
      if job.dedup_name then
        functions().end_deduplication(prefix, job.id, job.dedup_name)
        functions().add_kept_last(prefix, job.dedup_name, keys, queue, now)
      end
      if kind == COMPLETED then
        complete(job)
        settled.completions = settled.completions + 1
      else
        if job.is_cancelled then
          block_starts(kind == RELEASED and job.outcome[4] or 0)
          cancel(job)
        else
          fail(job, unpack(job.outcome, 4))
        end
        settled.failures = settled.failures + 1
      end
      return job.is_cancelled and 1 or 0
    elseif kind == RETRIED then
      retry(job)
    elseif kind == SNOOZED then
      delay_job(job, job.outcome[4])
    elseif kind == AWAITS then
      -- If no child is pending, the job runs again. That run fails if it is the second one in a row
      -- without a new child.
      local id, key, spawned, new = job.id, job.key, unpack(job.outcome, 4)
      if new > 0 then
        redis.call("HSET", key, "tbsp", spawned)
      end
      local is_waiting = redis.call("EXISTS", key .. ":dependencies") == 1
        and redis.call("EXISTS", key .. ":unsuccessful") == 0
      if is_waiting or new > 0 then
        redis.call("HDEL", key, "tbwc")
      elseif redis.call("HINCRBY", key, "tbwc", 1) >= 2 then
        redis.call("HSET", key, "defa", "the task raised WaitForChildren twice in a row, and had "
          .. "no new child to wait for")
      end
      if is_waiting then
        redis.call("XADD", events, "*", "event", "waiting-children", "jobId", id, "prev", "active")
        redis.call("ZADD", prefix .. "waiting-children", now, id)
      else
        release_job(job, 0)
      end
    else
      release_job(job, job.outcome[4])
    end
    return 0
  end

  -- Restore a job whose outcome was refused halfway: active, without the attempt. The next attempt
  -- overwrites everything else.
  local function undo(job)
    local id = job.id
    if not job.has_left then
      return
    end
    queue.room = queue.room - 1
    queue.blocked = queue.paused or queue.room <= 0
    if pending[#pending] == id then
      pending[#pending], pending[#pending - 1] = nil, nil
    end
    if type(redis.pcall("LPUSH", active, id)) == "table" then
      redis.pcall("RPUSH", active, id)
    end
    redis.pcall("HSET", job.key, "atm", job.attempts_made or 0)
  end

  redis.call("XTRIM", events, "MAXLEN", "~", event_limit(keys.meta, queue))
  local holders = redis.call("MGET", unpack(locks))
  local any_children = #family > 0 and redis.call("EXISTS", unpack(family)) > 0
  local unlocked, ended = {}, {}
  for i, job in ipairs(jobs) do
    local is_settled, code = pcall(settle, job, holders[i], any_children)
    if not is_settled then
      local problem = type(code) == "table" and code.err or tostring(code)
      undo(job)
      local broken = find_wrong_type(keys)
      problem = broken or problem
      code = (broken or is_denied(problem)) and -11 or -10
      if code == -10 and (job.kind == FAILED or job.is_cancelled) and job.has_left then
        -- A job can fail even if its parent or its deduplication id is broken.
        is_settled, code = pcall(settle, job, holders[i], any_children, true)
        if not is_settled then
          undo(job)
          code = -10
        end
      end
      if code <= -10 then
        settled.reasons[#settled.reasons + 1] = problem
      end
    end
    if code == 1 then
      settled.reasons[#settled.reasons + 1] = job.deferred_failure
    end
    if code >= 0 or code == -3 then
      unlocked[#unlocked + 1] = locks[i]
      ended[#ended + 1] = job.id
    elseif code == -4 or code == -9 then
      settled.unfinished = settled.unfinished + 1
    end
    codes[job.position] = code
  end
  flush()
  if #unlocked > 0 then
    redis.pcall("DEL", unpack(unlocked)) -- if refused, they expire
    redis.pcall("SREM", keys.stalled, unpack(ended))
  end
  settled.ended = ended
  return settled
end
