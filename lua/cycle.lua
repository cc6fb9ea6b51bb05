-- cycle: end jobs that a worker has run, and take others; many of each in one call.
--
-- KEYS
--   meta               hash     settings of the queue
--   wait               list     jobs that may run, taken from the tail
--   paused             list     the same while the queue is paused
--   active             list     jobs that run, newest at the head
--   prioritized        zset     jobs that may run, by priority
--   priority_counter   string   keeps jobs of equal priority in order
--   delayed            zset     jobs that may run later
--   completed          zset     jobs that are done
--   failed             zset     jobs that failed for good
--   stalled            set      active jobs whose worker has not been heard of
--   limiter            string   jobs started in the current window
--   marker             zset     wakes workers
--   events             stream   what happened
--   counter            string   number of the last job
--   memo               string   token and codes of this carrier's last call that ended jobs
-- ARGV
--   prefix                      start of every key of this queue
--   now                         ms
--   outcomes                    msgpack array of what became of jobs, each an array:
--                               id, token, kind, and for the kind
--                                 1 completed: value, keep
--                                 2 failed: reason, stacktrace, keep, attempts
--                                 3 retried: reason, stacktrace, delay, lifo, remembered (-1: none)
--                                 4 snoozed: delay
--                                 5 given back: ms for which the queue starts no job (0: it does)
--                               keep is {count, age in s, limit}; -1 in a place: no such bound
--   want                        how many jobs to take at the most
--   token                       value of the locks of the jobs that are taken
--   lock_life                   ms
--   max_starts                  the worker's own limit of starts per window; 0: none
--   window                      ms; its length by the worker's option, 0: it has none
--   worker                      name that is noted in the jobs; "": none
--   data_points                 how many minutes of metrics are kept; 0: none are taken
-- RETURNS
--   codes                       per outcome: 0, or why it was refused: -1 no such job, -2 no lock,
--                               -3 not active, -4 children pending, -6 another's lock,
--                               -9 children failed
--   jobs                        id and values of the fields of each job taken, in turn
--   limited                     ms until jobs may start again; 0: they may
--   next_due                    ms when the next delayed job is due, if none was taken; 0: unknown
-- EFFECTS
--   as those of BullMQ 6 for each job alone, one after the other

local meta, wait, paused, active, prioritized, priority_counter, delayed, completed, failed,
  stalled, limiter, marker, events, counter, memo = unpack(KEYS)
local prefix, now, outcomes, want, token, lock_life, max_starts, window, worker, data_points =
  unpack(ARGV)

--- @include "queue_state"
--- @include "event_limit"
--- @include "mark_base"
--- @include "mark_delay"
--- @include "delayed_score"
--- @include "priority_score"
--- @include "promote_due"
--- @include "delete_job"
--- @include "leave_parent"
--- @include "tell_parent_completed"
--- @include "tell_parent_failed"
--- @include "end_deduplication"
--- @include "add_kept_last"
--- @include "trim_finished"
--- @include "count_finished"
--- @include "read_job"

local COMPLETED, FAILED, RETRIED, SNOOZED = 1, 2, 3, 4
local MEMO_LIFE = 3600000

now, want, max_starts, window, data_points =
  tonumber(now), tonumber(want), tonumber(max_starts), tonumber(window), tonumber(data_points)
outcomes = cmsgpack.unpack(outcomes)
local queue = queue_state(meta, active, wait, paused)
local codes, counts, any_delayed, held_up, unfinished = {}, { 0, 0 }, false, false, 0

-- Of jobs that end alike, one after the other: they go to their set together.
local finished, finished_keep, pending = nil, nil, {}
local function flush()
  if #pending > 0 then
    redis.call("ZADD", finished, unpack(pending))
    if finished_keep[1] >= 0 or finished_keep[2] >= 0 then
      trim_finished(prefix, finished, finished_keep, finished == failed, now)
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
    end_deduplication(prefix, id, name)
    add_kept_last(prefix, name, { counter = counter, delayed = delayed, prioritized = prioritized,
      priority_counter = priority_counter, marker = marker, events = events }, queue, now)
  end
  local made = (tonumber(fields[2]) or 0) + 1
  if kind == COMPLETED then
    local value, keep = outcome[4], outcome[5]
    if parent_key then
      tell_parent_completed(key, parent_key, value, now)
    end
    if keep[1] == 0 then
      delete_job(key)
    else
      redis.call("HSET", key, "returnvalue", value, "finishedOn", now, "atm", made)
      put_away(completed, keep, id)
    end
    redis.call("XADD", events, "*", "event", "completed", "jobId", id, "returnvalue", value,
      "prev", "active")
    return
  end
  local reason, stacktrace, keep, attempts = outcome[4], outcome[5], outcome[6], outcome[7]
  if parent_key then
    tell_parent_failed(key, parent_key, reason, now)
  end
  if keep[1] == 0 then
    leave_parent(prefix, key, parent_key, false)
    delete_job(key)
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
end

local function delay_job(id, key, delay)
  local due = now + delay
  redis.call("HSET", key, "delay", delay)
  redis.call("ZADD", delayed, delayed_score(delayed, due), id)
  redis.call("XADD", events, "*", "event", "delayed", "jobId", id, "delay", due)
  any_delayed = true
end

local function retry(id, key, fields, outcome)
  local reason, stacktrace, delay, lifo, remembered = unpack(outcome, 4)
  redis.call("HSET", key, "failedReason", reason, "stacktrace", stacktrace,
    "atm", (tonumber(fields[2]) or 0) + 1)
  if remembered >= 0 then
    redis.call("HSET", key, "tbpd", remembered)
  end
  if delay > 0 then
    delay_job(id, key, delay)
    return
  end
  promote_due(prefix, delayed, prioritized, priority_counter, marker, events, queue, now)
  local priority = tonumber(redis.call("HGET", key, "priority")) or 0
  if priority > 0 then
    redis.call("ZADD", prioritized, priority_score(priority, priority_counter), id)
  else
    redis.call(lifo and "RPUSH" or "LPUSH", queue.target, id)
  end
  mark_base(marker, queue.blocked)
  redis.call("XADD", events, "*", "event", "waiting", "jobId", id, "prev", "active")
end

local function give_back(id, key, pause)
  local priority = tonumber(redis.call("HGET", key, "priority")) or 0
  if pause > 0 then
    redis.call("SET", limiter, "9007199254740991", "PX", pause)
    held_up = true
  end
  if priority > 0 then
    redis.call("ZADD", prioritized, priority * 0x100000000, id)
  else
    -- RPUSH: workers take from the right, and a job that is given back has waited its turn.
    redis.call("RPUSH", queue.target, id)
  end
  -- BullMQ does so only for a job without priority: others wait until some worker looks by itself.
  mark_base(marker, queue.blocked)
  redis.call("XADD", events, "*", "event", "waiting", "jobId", id, "prev", "active")
end

if #outcomes > 0 then
  redis.call("XTRIM", events, "MAXLEN", "~", event_limit(meta, queue))
  local locks, family, ends = {}, {}, {}
  for i = 1, #outcomes do
    local key = prefix .. outcomes[i][1]
    locks[i] = key .. ":lock"
    ends[outcomes[i][3]] = true
    if outcomes[i][3] == COMPLETED then
      family[#family + 1] = key .. ":dependencies"
      family[#family + 1] = key .. ":unsuccessful"
    end
  end
  -- If the jobs cannot be put away, the call ends here, before it has taken them from `active`.
  for kind, set in ipairs({ completed, failed }) do
    if ends[kind] then
      redis.call("ZCARD", set)
    end
  end
  local holders = redis.call("MGET", unpack(locks))
  local any_children = #family > 0 and redis.call("EXISTS", unpack(family)) > 0
  local unlocked, ended = {}, {}
  for i = 1, #outcomes do
    local outcome = outcomes[i]
    local id, kind = outcome[1], outcome[3]
    local key = prefix .. id
    local code, fields = 0, nil
    if holders[i] == outcome[2] then
      fields = redis.pcall("HMGET", key, "ats", "atm", "parentKey", "deid")
      if fields.err or not fields[1] then
        code = -1
      elseif any_children and kind == COMPLETED then
        if redis.call("EXISTS", key .. ":dependencies") == 1 then
          code = -4
        elseif redis.call("EXISTS", key .. ":unsuccessful") == 1 then
          code = -9
        end
        if code ~= 0 then
          unfinished = unfinished + 1
        end
      end
    elseif redis.call("EXISTS", key) == 0 then
      code = -1
    else
      code = holders[i] and -6 or -2
    end
    if code == 0 then
      unlocked[#unlocked + 1] = locks[i]
      ended[#ended + 1] = id
      if redis.call("LREM", active, -1, id) == 0 then
        code = -3
      else
        queue.room = queue.room + 1
        queue.blocked = queue.paused or queue.room <= 0
      end
    end
    if code == 0 then
      if kind == COMPLETED or kind == FAILED then
        finish(id, key, kind, fields, outcome)
        counts[kind] = counts[kind] + 1
      elseif kind == RETRIED then
        retry(id, key, fields, outcome)
      elseif kind == SNOOZED then
        delay_job(id, key, outcome[4])
      else
        give_back(id, key, outcome[4])
      end
    end
    codes[i] = code
  end
  flush()
  if #unlocked > 0 then
    redis.call("DEL", unpack(unlocked))
    redis.call("SREM", stalled, unpack(ended))
  end
  -- Whoever does not get our reply asks this, and the end of a job is told by one worker only.
  redis.call("SET", memo, cmsgpack.pack({ token, codes }), "PX", MEMO_LIFE)
  if data_points > 0 then
    for kind, name in ipairs({ "completed", "failed" }) do
      if counts[kind] > 0 then
        count_finished(prefix .. "metrics:" .. name, counts[kind], data_points, now)
      end
    end
  end
end

local jobs, limited, next_due = {}, 0, 0

local function take_ids(most)
  local ids = redis.call("RPOP", wait, most) or {}
  if #ids > 0 and string.sub(ids[1], 1, 2) == "0:" then
    table.remove(ids, 1) -- the marker of an ancient version
    local more = redis.call("RPOP", wait, 1)
    ids[#ids + 1] = more and more[1] or nil
  end
  if #ids < most then
    local popped = redis.call("ZPOPMIN", prioritized, most - #ids)
    if #popped < 2 * (most - #ids) then
      redis.call("DEL", priority_counter)
    end
    for i = 1, #popped, 2 do
      ids[#ids + 1] = popped[i]
    end
  end
  return ids
end

if want > 0 then
  promote_due(prefix, delayed, prioritized, priority_counter, marker, events, queue, now)
  -- A job that asks its queue to wait is not taken again by the same call, limits or not; and the
  -- slot of one that its children keep from being completed is not free yet.
  local most = (queue.blocked or held_up) and 0 or math.min(want - unfinished, queue.room)
  local starts = queue.max_starts or max_starts
  local started = 0
  if starts > 0 then
    started = tonumber(redis.call("GET", limiter) or 0)
    if started >= starts then
      local ttl = redis.call("PTTL", limiter)
      if ttl > 0 then
        limited, most = ttl, 0
      elseif ttl == 0 then
        redis.call("DEL", limiter)
        started = 0
      end
    end
    most = math.min(most, math.max(starts - started, 0))
  end
  local ids = most > 0 and take_ids(most) or {}
  if #ids > 0 then
    redis.call("LPUSH", active, unpack(ids))
    local counted = 0
    for i = 1, #ids do
      local id = ids[i]
      local key = prefix .. id
      local fields = read_job(key)
      if fields.err then
        redis.call("LREM", active, 1, id) -- no job has such a key: garbage in the list
      else
        local times = (tonumber(fields[8]) or 0) + 1
        fields[8] = string.format("%d", times)
        redis.call("SET", key .. ":lock", token, "PX", lock_life)
        redis.call("XADD", events, "*", "event", "active", "jobId", id, "prev", "waiting")
        if worker == "" then
          redis.call("HSET", key, "processedOn", now, "ats", times)
        else
          redis.call("HSET", key, "processedOn", now, "ats", times, "pb", worker)
        end
        if not fields[9] then
          counted = counted + 1
        end
        jobs[#jobs + 1] = id
        jobs[#jobs + 1] = fields
      end
    end
    if starts > 0 and counted > 0 then
      if redis.call("INCRBY", limiter, counted) == counted then
        redis.call("PEXPIRE", limiter,
          math.floor(math.abs(window > 0 and window or tonumber(queue.window) or 0)))
      end
    end
    redis.call("ZADD", marker, 0, "0")
  elseif limited == 0 then
    local earliest = redis.call("ZRANGE", delayed, 0, 0, "WITHSCORES")
    next_due = earliest[2] and math.floor(tonumber(earliest[2]) / 4096) or 0
  end
end

if any_delayed and #jobs == 0 then -- else the base marker is there, and the next fetch finds out
  mark_delay(marker, delayed)
end
-- Nobody is told that the queue is drained while it is paused, limited, or has delayed jobs.
local fetched = want > 0 and (#jobs > 0 or limited > 0 or queue.blocked or next_due > 0)
if counts[COMPLETED] + counts[FAILED] > 0 and not fetched
  and redis.call("EXISTS", wait, active, prioritized) == 0 then
  redis.call("XADD", events, "*", "event", "drained")
end

return { codes, jobs, limited, next_due }
