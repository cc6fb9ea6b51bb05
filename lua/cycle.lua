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
--                               -9 children failed, -10 something in Redis prevents it, -11 this
--                               user may not, or the queue itself is broken: another try may do
--                               it; the job is still active and locked by its token
--   jobs                        id and values of the fields of each job taken, in turn
--   limited                     ms until jobs may start again; 0: they may
--   next_due                    ms when the next delayed job is due, if none was taken; 0: unknown
--   full                        1 if no job was taken because Redis is out of memory, else 0
--   reasons                     what Redis said, for each code -10 or -11, in turn
--   dropped                     ids that were in the waiting list and are none of a job
-- EFFECTS
--   as those of BullMQ 6 for each job alone, one after the other. Whatever command is refused, no
--   job is lost: it is put into its new list or set before it leaves the old one, or is put back.
--   Jobs are taken up to about 2 MB, the first whatever its size. One whose id is not UTF-8 fails

local meta, wait, paused, active, prioritized, priority_counter, delayed, completed, failed,
  stalled, limiter, marker, events, counter, memo = unpack(KEYS)
local prefix, now, outcomes, want, token, lock_life, max_starts, window, worker, data_points =
  unpack(ARGV)

--- @include "finite"
--- @include "typed"
--- @include "queue_state"
--- @include "mark_base"
--- @include "mark_delay"
--- @include "promote_due"

local COMPLETED, FAILED, RETRIED, SNOOZED = 1, 2, 3, 4
local MEMO_LIFE = 3600000
local MOST_BYTES = 2000000

now, want, max_starts, window, data_points =
  tonumber(now), tonumber(want), tonumber(max_starts), tonumber(window), tonumber(data_points)
outcomes = cmsgpack.unpack(outcomes)
local queue = queue_state(meta, active, wait, paused)
local codes, counts, any_delayed, held_up, unfinished = {}, { 0, 0 }, false, false, 0
local full, reasons, dropped = 0, {}, {}

-- Ask Redis for a write that does nothing: it raises what any other would, but for a lack of
-- memory, which is noted. From its second write on Redis lets a script fill the memory.
local function ask(set)
  local reply = redis.pcall("ZADD", set, "XX", 0, "")
  if type(reply) == "table" then
    if not string.find(reply.err, "OOM", 1, true) then
      redis.call("ZADD", set, "XX", 0, "")
    end
    full = 1
  end
end

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

-- If jobs cannot be put away, or none can be taken, the call ends here, and nothing is written.
-- Only without memory it goes on, with what has ended: XTRIM is let through, and so is the rest.
for kind, set in ipairs({ completed, failed }) do
  if ends[kind] then
    ask(set)
  end
end
if want > 0 and not (ends[COMPLETED] or ends[FAILED]) then
  ask(marker)
end
if full == 1 then
  want = 0
end

if #outcomes > 0 then
  --- @include "event_limit"
  --- @include "is_denied"
  --- @include "delayed_score"
  --- @include "priority_score"
  --- @include "delete_job"
  --- @include "trim_finished"
  --- @include "count_finished"
  --- @include "relatives"

  local kin
  local function of_kin()
    kin = kin or relatives()
    return kin
  end

  -- Of jobs that end alike, one after the other: they go to their set together.
  local finished, finished_keep, pending = nil, nil, {}
  local function flush()
    if #pending > 0 then
      redis.call("ZADD", finished, unpack(pending))
      if finished_keep[1] >= 0 or finished_keep[2] >= 0 then
        local leave_parent = finished == failed and of_kin().leave_parent or nil
        -- What is left over is removed by the next one.
        pcall(trim_finished, prefix, finished, finished_keep, leave_parent, now)
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
      of_kin().add_kept_last(prefix, name, { counter = counter, delayed = delayed,
        prioritized = prioritized, priority_counter = priority_counter, marker = marker,
        events = events }, queue, now)
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
    redis.call("ZADD", delayed, delayed_score(delayed, due), id)
    any_delayed = true
  end

  local function retry(id, key, fields, outcome)
    local reason, stacktrace, delay, lifo, remembered = unpack(outcome, 4)
    if delay <= 0 then
      promote_due(prefix, delayed, prioritized, priority_counter, marker, events, queue, now)
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
      redis.call("ZADD", prioritized, priority_score(priority, priority_counter), id)
    else
      redis.call(lifo and "RPUSH" or "LPUSH", queue.target, id)
    end
    mark_base(marker, queue.blocked)
  end

  local function give_back(id, key, pause)
    local priority = finite(redis.call("HGET", key, "priority")) or 0
    if pause > 0 then
      redis.call("SET", limiter, "9007199254740991", "PX", pause)
      held_up = true
    end
    redis.call("XADD", events, "*", "event", "waiting", "jobId", id, "prev", "active")
    if priority > 0 then
      redis.call("ZADD", prioritized, priority * 0x100000000, id)
    else
      -- RPUSH: workers take from the right, and a job that is given back has waited its turn.
      redis.call("RPUSH", queue.target, id)
    end
    -- BullMQ does so only for a job without priority: others wait until a worker looks by itself.
    mark_base(marker, queue.blocked)
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
      counts[kind] = counts[kind] + 1
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

  redis.call("XTRIM", events, "MAXLEN", "~", event_limit(meta, queue))
  local holders = redis.call("MGET", unpack(locks))
  local any_children = #family > 0 and redis.call("EXISTS", unpack(family)) > 0
  local unlocked, ended = {}, {}
  for i = 1, #outcomes do
    local outcome = outcomes[i]
    local id, kind = outcome[1], outcome[3]
    local is_settled, code = pcall(settle, outcome, holders[i], any_children)
    if not is_settled then
      local problem = type(code) == "table" and code.err or tostring(code)
      undo(id)
      --- @include "misfit"
      local broken = misfit(KEYS, { "hash", "list", "list", "list", "zset", "number", "zset",
        "zset", "zset", "set", "string", "zset", "stream", "number" })
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
        reasons[#reasons + 1] = problem
      end
    end
    if code == 0 or code == -3 then
      unlocked[#unlocked + 1] = locks[i]
      ended[#ended + 1] = id
    elseif code == -4 or code == -9 then
      unfinished = unfinished + 1
    end
    codes[i] = code
  end
  flush()
  if #unlocked > 0 then
    redis.pcall("DEL", unpack(unlocked)) -- or they expire
    redis.pcall("SREM", stalled, unpack(ended))
  end
  -- Whoever does not get our reply asks this, and the end of a job is told by one worker only.
  redis.pcall("SET", memo, cmsgpack.pack({ token, codes }), "PX", MEMO_LIFE)
  if data_points > 0 then
    for kind, name in ipairs({ "completed", "failed" }) do
      if counts[kind] > 0 then
        pcall(count_finished, prefix .. "metrics:" .. name, counts[kind], data_points, now)
      end
    end
  end
end

local jobs, limited, next_due = {}, 0, 0

if want > 0 then
  --- @include "names_own_key"
  --- @include "read_job"
  --- @include "examine_odd"

  -- Look at ids that wait, in turn, and note the jobs; gives how many of them were looked at.
  local bytes, seen = 0, {}
  local function look(ids, first, step)
    local place = first
    while ids[place] do
      local id = ids[place]
      local is_marker = string.sub(id, 1, 2) == "0:" -- of an ancient version
      local is_other = is_marker or seen[id] or names_own_key(id)
      local fields = not is_other and typed(read_job(prefix .. id))
      if fields and (not fields[4] or string.find(id, "[\128-\255]")) then
        fields = examine_odd(prefix, id, fields, failed, events, now) and fields
      end
      if fields then
        bytes = bytes + #(fields[2] or "") + #(fields[3] or "") + #(fields[14] or "")
        if bytes > MOST_BYTES and #jobs > 0 then
          break
        end
        jobs[#jobs + 1], jobs[#jobs + 2] = id, fields
        redis.call("SET", prefix .. id .. ":lock", token, "PX", lock_life)
      elseif not is_marker then
        dropped[#dropped + 1] = id
      end
      seen[id] = true
      place = place + step
    end
    return math.abs(place - first)
  end

  -- Put the jobs from `first` on into `active`, then let ids leave where they were, by a command.
  -- If that is refused, nothing has changed. From here on a job is adopted by its lock.
  local function move(first, ...)
    local ids = {}
    for i = first, #jobs, 2 do
      ids[#ids + 1] = jobs[i]
    end
    if #ids > 0 then
      redis.call("LPUSH", active, unpack(ids))
    end
    local reply = redis.pcall(...)
    if type(reply) == "table" and reply.err then
      for i = 1, #ids do
        redis.pcall("LREM", active, 1, ids[i])
      end
      redis.call(...) -- it raises
    end
  end

  -- Take jobs, first from the waiting list, then by priority; gives whether anything waited.
  local function take(most)
    local listed = redis.call("LRANGE", wait, -most, -1)
    if #listed == most and string.sub(listed[most], 1, 2) == "0:" then
      listed = redis.call("LRANGE", wait, -most - 1, -1)
    end
    local from_list, from_set = look(listed, #listed, -1), 0
    if from_list > 0 then
      move(1, "LTRIM", wait, 0, -from_list - 1)
    end
    if #listed < most and from_list == #listed then
      local first, ranked = #jobs + 1, redis.call("ZRANGE", prioritized, 0, most - #listed - 1)
      from_set = look(ranked, 1, 1)
      if from_set > 0 then
        move(first, "ZREM", prioritized, unpack(ranked, 1, from_set))
      end
      if from_set == #ranked and #listed + #ranked < most then
        redis.pcall("DEL", priority_counter)
      end
    end
    return from_list + from_set > 0
  end

  promote_due(prefix, delayed, prioritized, priority_counter, marker, events, queue, now)
  -- A job that asks its queue to wait is not taken again by the same call, limits or not; and the
  -- slot of one that its children keep from being completed is not free yet.
  local most = (queue.blocked or held_up) and 0 or math.min(want - unfinished, queue.room)
  local starts = queue.max_starts or max_starts
  local started = 0
  if starts > 0 then
    started = finite(typed(redis.pcall("GET", limiter))) or 0
    if started >= starts then
      local ttl = redis.call("PTTL", limiter)
      if ttl > 0 then
        limited, most = ttl, 0
      else -- it is over, or would never be
        redis.call("DEL", limiter)
        started = 0
      end
    end
    most = math.min(most, math.max(starts - math.floor(started), 0))
  end
  if most > 0 and take(most) then
    local counted = 0
    for i = 1, #jobs, 2 do
      local key, fields = prefix .. jobs[i], jobs[i + 1]
      local times = fields[8] and math.max(0, finite(fields[8]) or 0) + 1 or 1
      fields[8] = string.format("%.0f", times)
      if worker == "" then
        redis.call("HSET", key, "processedOn", now, "ats", times)
      else
        redis.call("HSET", key, "processedOn", now, "ats", times, "pb", worker)
      end
      redis.call("XADD", events, "*", "event", "active", "jobId", jobs[i], "prev", "waiting")
      if not fields[9] then
        counted = counted + 1
      end
    end
    if starts > 0 and counted > 0 then
      local count = redis.pcall("INCRBY", limiter, counted)
      if type(count) == "table" then -- it was no number
        redis.pcall("SET", limiter, counted)
        count = counted
      end
      if count == counted then
        redis.pcall("PEXPIRE", limiter, window > 0 and window or queue.window)
      end
    end
    redis.call("ZADD", marker, 0, "0")
  elseif limited == 0 then
    local earliest = redis.call("ZRANGE", delayed, 0, 0, "WITHSCORES")
    next_due = earliest[2] and math.floor((finite(earliest[2]) or 0) / 4096) or 0
  end
end

if any_delayed and #jobs == 0 then -- else the base marker is there, and the next fetch finds out
  pcall(mark_delay, marker, delayed)
end
-- Nobody is told that the queue is drained while it is paused, limited, or has delayed jobs.
local fetched = want > 0 and (#jobs > 0 or limited > 0 or queue.blocked or next_due > 0)
if counts[COMPLETED] + counts[FAILED] > 0 and not fetched
  and redis.call("EXISTS", wait, active, prioritized) == 0 then
  redis.call("XADD", events, "*", "event", "drained")
end

return { codes, jobs, limited, next_due, full, reasons, dropped }
