--- @include "delayed_score"
--- @include "delete_job"
--- @include "event_limit"
--- @include "finite"
--- @include "is_denied"
--- @include "lacks_memory"
--- @include "mark_base"
--- @include "misfit"
--- @include "priority_score"
--- @include "promote_due"
--- @include "relatives"
--- @include "trim_finished"
--- @include "typed"

-- settle_outcomes(prefix, keys, queue, outcomes, last, codes, now, is_taking) -> {full, reasons,
-- completions, failures, any_delayed, held_up, unfinished}: write what became of jobs, whatever it
-- is, one by one. `keys` has the queue's keys by name, and `queue` is what queue_state gave;
-- `outcomes` are by their places, up to `last`, and each gets its code at its place in `codes`;
-- `is_taking`: jobs are taken next. `full` is 1 if Redis is out of memory; `held_up`: the queue is
-- to start no job now; `unfinished`: how many wait for children.
--
-- An outcome is an array: id, token, kind, and for the kind
--   1 completed: value, keep
--   2 failed: reason, stacktrace, keep, attempts
--   3 retried: reason, stacktrace, delay, lifo, remembered (or -1)
--   4 snoozed: delay
--   5 given back: ms for which the queue starts no job (0: it does)
-- keep is {count, age in s, limit}; -1 in a place: no such bound.
local function settle_outcomes(prefix, keys, queue, outcomes, last, codes, now, is_taking)
  local COMPLETED, FAILED, RETRIED, SNOOZED = 1, 2, 3, 4
  local MOST_TRIMMED, MOST_PROMOTED = 100, 100
  local active, completed, failed, events = keys.active, keys.completed, keys.failed, keys.events
  local settled = { full = 0, reasons = {}, completions = 0, failures = 0, any_delayed = false,
    held_up = false, unfinished = 0 }

  local places, locks, family, ends = {}, {}, {}, {}
  for place = 1, last do
    local outcome = outcomes[place]
    if outcome then
      local key = prefix .. outcome[1]
      places[#places + 1] = place
      locks[#locks + 1] = key .. ":lock"
      ends[outcome[3]] = true
      if outcome[3] == COMPLETED then
        family[#family + 1] = key .. ":dependencies"
        family[#family + 1] = key .. ":unsuccessful"
      end
    end
  end

  -- If jobs cannot be put away, the call ends here. Only without memory it goes on, with what has
  -- ended: XTRIM is let through, and so is the rest.
  for kind, set in ipairs({ completed, failed }) do
    if ends[kind] and lacks_memory(set) then
      settled.full = 1
    end
  end
  if is_taking and not (ends[COMPLETED] or ends[FAILED]) and lacks_memory(keys.marker) then
    settled.full = 1
  end

  local kin
  local function of_kin()
    kin = kin or relatives()
    return kin
  end

  -- Of jobs that end alike, one after the other: they go to their set together.
  local finished, finished_keep, pending, room_to_trim = nil, nil, {}, MOST_TRIMMED
  local function flush()
    if #pending > 0 then
      redis.call("ZADD", finished, unpack(pending))
      if finished_keep[1] >= 0 or finished_keep[2] >= 0 then
        local leave_parent = finished == failed and of_kin().leave_parent or nil
        -- What is left over is removed by the next one.
        local is_trimmed, trimmed =
          pcall(trim_finished, prefix, finished, finished_keep, leave_parent, now, room_to_trim)
        room_to_trim = room_to_trim - (is_trimmed and trimmed or 0)
      end
      pending = {}
    end
  end

  local function put_away(set, keep, id)
    local same = finished == set and keep[1] == finished_keep[1] and keep[2] == finished_keep[2]
      and keep[3] == finished_keep[3]
    if not same then
      flush()
      finished, finished_keep = set, keep
    end
    pending[#pending + 1] = now
    pending[#pending + 1] = id
  end

  local function finish(id, key, kind, fields, outcome)
    local parent_key, name = fields[3], fields[4]
    if name then
      of_kin().end_deduplication(prefix, id, name)
      of_kin().add_kept_last(prefix, name, keys, queue, now)
    end
    local made = fields[2] and math.max(0, finite(fields[2]) or 0) + 1 or 1
    if kind == COMPLETED then
      local value, keep = outcome[4], outcome[5]
      if parent_key then
        of_kin().tell_completed(key, parent_key, value, now)
      end
      if keep[1] ~= 0 then
        redis.call("HSET", key, "returnvalue", value, "finishedOn", now, "atm", made)
        put_away(completed, keep, id)
      end
      redis.call("XADD", events, "*", "event", "completed", "jobId", id, "returnvalue", value,
        "prev", "active")
      if keep[1] == 0 then
        delete_job(key)
      end
      return
    end
    local reason, stacktrace, keep, attempts = outcome[4], outcome[5], outcome[6], outcome[7]
    if parent_key then
      of_kin().tell_failed(key, parent_key, reason, now)
    end
    if keep[1] == 0 then
      if parent_key then
        of_kin().leave_parent(prefix, key, parent_key, false)
      end
    else
      redis.call("HSET", key, "failedReason", reason, "stacktrace", stacktrace, "finishedOn", now,
        "atm", made)
      redis.call("HDEL", key, "defa")
      put_away(failed, keep, id)
    end
    redis.call("XADD", events, "*", "event", "failed", "jobId", id, "failedReason", reason,
      "prev", "active")
    if made >= attempts then
      redis.call("XADD", events, "*", "event", "retries-exhausted", "jobId", id,
        "attemptsMade", made)
    end
    if keep[1] == 0 then
      delete_job(key)
    end
  end

  -- A job's place in a list or set is the last thing to be written: if anything before is refused,
  -- it is only active.
  local function delay_job(id, key, delay)
    local due = now + delay
    redis.call("HSET", key, "delay", delay)
    redis.call("XADD", events, "*", "event", "delayed", "jobId", id, "delay", due)
    redis.call("ZADD", keys.delayed, delayed_score(keys.delayed, due), id)
    settled.any_delayed = true
  end

  local is_promoted = false
  local function retry(id, key, fields, outcome)
    local reason, stacktrace, delay, lifo, remembered = unpack(outcome, 4)
    if delay <= 0 and not is_promoted then
      promote_due(prefix, keys, queue, now, MOST_PROMOTED)
      is_promoted = true
    end
    redis.call("HSET", key, "failedReason", reason, "stacktrace", stacktrace,
      "atm", math.max(0, finite(fields[2]) or 0) + 1)
    if remembered >= 0 then
      redis.call("HSET", key, "tbpd", remembered)
    end
    if delay > 0 then
      delay_job(id, key, delay)
      return
    end
    local priority = finite(redis.call("HGET", key, "priority")) or 0
    redis.call("XADD", events, "*", "event", "waiting", "jobId", id, "prev", "active")
    if priority > 0 then
      redis.call("ZADD", keys.prioritized, priority_score(priority, keys.priority_counter), id)
    else
      redis.call(lifo and "RPUSH" or "LPUSH", queue.target, id)
    end
    mark_base(keys.marker, queue.blocked)
  end

  local function give_back(id, key, pause)
    local priority = finite(redis.call("HGET", key, "priority")) or 0
    if pause > 0 then
      redis.call("SET", keys.limiter, "9007199254740991", "PX", pause)
      settled.held_up = true
    end
    redis.call("XADD", events, "*", "event", "waiting", "jobId", id, "prev", "active")
    if priority > 0 then
      redis.call("ZADD", keys.prioritized, priority * 0x100000000, id)
    else
      -- RPUSH: workers take from the right, and a job that is given back has waited its turn.
      redis.call("RPUSH", queue.target, id)
    end
    -- BullMQ does so only for a job without priority: others wait until a worker looks by itself.
    mark_base(keys.marker, queue.blocked)
  end

  -- Tell whether an outcome may be written: 0 or a code; and the fields that are needed for it.
  local function judge(outcome, holder, any_children)
    local key = prefix .. outcome[1]
    if holder ~= outcome[2] then
      if redis.call("EXISTS", key) == 0 then
        return -1
      end
      return holder and -6 or -2
    end
    local fields = typed(redis.pcall("HMGET", key, "ats", "atm", "parentKey", "deid"))
    if not fields or not fields[1] and redis.call("EXISTS", key) == 0 then
      return -1
    end
    if any_children and outcome[3] == COMPLETED then
      if redis.call("EXISTS", key .. ":dependencies") == 1 then
        return -4
      elseif redis.call("EXISTS", key .. ":unsuccessful") == 1 then
        return -9
      end
    end
    return 0, fields
  end

  -- What `settle` has found and done so far, for `undo`.
  local has_left, known = false, nil

  local function settle(outcome, holder, any_children, alone)
    local id, kind = outcome[1], outcome[3]
    local key = prefix .. id
    has_left, known = false, nil
    local code, fields = judge(outcome, holder, any_children)
    if code ~= 0 then
      return code
    end
    if redis.call("LREM", active, -1, id) == 0 then
      return -3
    end
    has_left, known = true, fields
    queue.room = queue.room + 1
    queue.blocked = queue.paused or queue.room <= 0
    if alone then
      fields[3], fields[4] = false, false
    end
    if kind == COMPLETED or kind == FAILED then
      finish(id, key, kind, fields, outcome)
      local count = kind == COMPLETED and "completions" or "failures"
      settled[count] = settled[count] + 1
    elseif kind == RETRIED then
      retry(id, key, fields, outcome)
    elseif kind == SNOOZED then
      delay_job(id, key, outcome[4])
    else
      give_back(id, key, outcome[4])
    end
    return 0
  end

  -- Let the job of an outcome that was refused halfway be as it was: active, and its attempt not
  -- counted. What else was written is written again by the next try.
  local function undo(id)
    if not has_left then
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
    redis.pcall("HSET", prefix .. id, "atm", known[2] or 0)
  end

  redis.call("XTRIM", events, "MAXLEN", "~", event_limit(keys.meta, queue))
  local holders = redis.call("MGET", unpack(locks))
  local any_children = #family > 0 and redis.call("EXISTS", unpack(family)) > 0
  local unlocked, ended = {}, {}
  for i = 1, #places do
    local outcome = outcomes[places[i]]
    local id, kind = outcome[1], outcome[3]
    local is_settled, code = pcall(settle, outcome, holders[i], any_children)
    if not is_settled then
      local problem = type(code) == "table" and code.err or tostring(code)
      undo(id)
      local broken = misfit(keys)
      problem = broken or problem
      code = (broken or is_denied(problem)) and -11 or -10
      if code == -10 and kind == FAILED and has_left then
        -- Whatever is wrong with its parent or its deduplication, a job can fail by itself.
        is_settled, code = pcall(settle, outcome, holders[i], any_children, true)
        if not is_settled then
          undo(id)
          code = -10
        end
      end
      if code <= -10 then
        settled.reasons[#settled.reasons + 1] = problem
      end
    end
    if code == 0 or code == -3 then
      unlocked[#unlocked + 1] = locks[i]
      ended[#ended + 1] = id
    elseif code == -4 or code == -9 then
      settled.unfinished = settled.unfinished + 1
    end
    codes[places[i]] = code
  end
  flush()
  if #unlocked > 0 then
    redis.pcall("DEL", unpack(unlocked)) -- or they expire
    redis.pcall("SREM", keys.stalled, unpack(ended))
  end
  return settled
end
