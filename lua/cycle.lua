-- cycle: store the outcomes of jobs that a worker ran, and fetch new jobs; many of each per call.
--
-- KEYS
--   meta               hash     queue settings
--   wait               list     waiting jobs, taken from the tail
--   active             list     running jobs, newest at the head
--   delayed            zset     delayed jobs, by due time
--   completed          zset     completed jobs
--   stalled            set      active jobs whose lock was not renewed since the last sweep
--   marker             zset     wakes workers
--   events             stream   queue events
--   memo               string   token and codes of the last call in this sequence that finished
--                               jobs (only the token if all codes were 0)
-- ARGV
--   prefix                      queue key prefix
--   now                         ms
--   want                        maximum number of jobs to fetch
--   token                       token for the locks of the fetched jobs
--   lock_life                   ms
--   worker                      name to store in the jobs, or ""
--   settings                    msgpack array of less common settings, or "" if all are 0
--                                 the worker's own limit of starts per window, or 0
--                                 ms; window length from the worker's option, or 0
--                                 minutes of metrics to keep, or 0 for no metrics
--                                 1 if completed jobs were already counted in this minute, else 0
--                                 optional, for stalled jobs: ms to delay the first (500), ms more
--                                 for each further one (20), and 0 to fetch none (otherwise one)
--   outcomes                    msgpack array, or "" if all outcomes are plain and all jobs are
--                               kept
--                                 other outcomes: map of an outcome's position (from 1) to an
--                                 array, see settle_outcomes
--                                 keep of the plain ones
--                               keep is {count, age in s, limit}, each -1 for no bound
--   ...                         id, token, value of each plain outcome, in the other positions.
--                               Its job is completed and kept, and was new when a call with the
--                               same `worker` fetched it: it had only six fields, or two more
--                               that name its parent
-- RETURNS
--   one flat array; nested arrays only if needed, since each costs as much as a command
--   limited                     ms until jobs may start again, or 0 if they may
--   next_due                    ms when the next delayed job is due if none was fetched, or 0 if
--                               unknown
--   full                        1 if no job was fetched because Redis is out of memory, else 0
--   codes                       0 if every outcome was stored; else an array with one code each: 0
--                               stored; 1 it was cancelled, and failed instead of running again; or
--                               the reason for refusing: -1 no such job, -2 no lock, -3 not active,
--                               -4 children pending, -6 another worker's lock, -9 children failed,
--                               -10 Redis rejected the write, -11 this user may not, or a key of
--                               the queue has the wrong type. After -10 and -11 the job is still
--                               active and locked by its token. After -11, a retry may work
--   reasons                     0, or an array: the cancel reason for each code 1, Redis's error
--                               for each code -10 or -11, in order
--   passed_over                 0, or an array: number of jobs delayed because they stalled, then
--                               the waiting ids that do not belong to a job
--   jobs                        the id of each fetched job, then its six field values if it is new
--                               and has no others; or the number 1, these six and its parent's key
--                               if it is a new child; or an array of all field values
-- EFFECTS
--   as in BullMQ 6 for each job in turn. No job is lost if a command is refused: it enters its new
--   list or set before it leaves the old one, or is put back. Jobs are fetched up to about 2 MB,
--   the first regardless of its size. A job whose id is not UTF-8 fails

local meta, wait, active, delayed, completed, stalled, marker, events, memo = unpack(KEYS)
local prefix, now, want, token, lock_life, worker, settings, outcomes = unpack(ARGV)

--- @include "finite"
--- @include "queue_state"
--- @include "refusal"

-- Each run builds every function again, at 500 instructions plus 400 per upvalue, so rarely needed
-- functions are built where they are used. Numbers stay text, because Redis needs 2,700
-- instructions to format a Lua number. A table that grows from empty costs 1,000 more for each
-- doubling.
local redis = redis
local queue = queue_state(meta, active, wait, nil, true)
local max_starts, window, data_points, has_begun, hold_for, hold_step, may_try = 0, 0, 0, 0
want = tonumber(want)
if settings ~= "" then
  max_starts, window, data_points, has_begun, hold_for, hold_step, may_try =
    unpack(cmsgpack.unpack(settings))
end

-- First half: store outcomes. --------------------------------------------------------------------

local COMPLETED, DENIED = 1, -11
local MEMO_LIFE, MOST_TRIMMED = "3600000", 100
local ID, TOKEN, VALUE = 6, 7, 8 -- ARGV indexes of plain outcome i, minus 3 * i
local plain, plain_count = ARGV, (#ARGV - VALUE) / 3
local codes, reasons, full = 0, 0, 0
local completions, failures, unfinished, starts_blocked, any_delayed = 0, 0, 0, false, false
local others, other_count, keep, is_noted = nil, 0, nil, false
if outcomes ~= "" then
  others, keep = unpack(cmsgpack.unpack(outcomes))
  for _ in pairs(others) do
    other_count = other_count + 1
  end
  others = other_count > 0 and others or nil
end

-- Plain jobs, together. A job is plain only if nothing has changed since it was fetched. If a
-- command is refused, its jobs become active again and are handled with the others.
local ids, locks
if plain_count > 0 then
  --- @include "event_limit"

  -- The jobs that finish here; `numbers` are their indexes among the plain outcomes, nil for all.
  ids, locks = { nil, nil, nil, nil }, { nil, nil, nil, nil }
  local keys, numbers = { nil, nil, nil, nil }, nil
  local family = { nil, nil, nil, nil, nil, nil, nil, nil }
  for i = 1, plain_count do
    local id = plain[3 * i + ID]
    local key = prefix .. id
    ids[i], keys[i], locks[i] = id, key, key .. ":lock"
    family[2 * i - 1], family[2 * i] = key .. ":dependencies", key .. ":unsuccessful"
  end

  -- Fields of a running job are never deleted, so an unchanged count means no new fields. (HLEN
  -- takes 2,600 instructions, HMGET 12,900.)
  local holders, size = redis.call("MGET", unpack(locks)), worker == "" and 8 or 9
  local has_children, index = redis.call("EXISTS", unpack(family)) > 0, 1
  local parents, can_finish -- each job's parent key or false; nil if none has one
  for i = 1, plain_count do
    local is_plain = not has_children and holders[i] == plain[3 * i + TOKEN]
    local count = is_plain and redis.pcall("HLEN", keys[index])
    if is_plain and count ~= size then
      if not can_finish then
        -- Return whether a job with more fields than a new one can finish with the plain ones, and
        -- its parent's key or false. `is_child` means that it has as many fields as a new child.
        -- Any other job must have no previous attempt, and be neither deduplicated nor cancelled.
        can_finish = function(key, is_child)
          local parent_key = is_child and redis.pcall("HGET", key, "parentKey")
          if type(parent_key) == "string" then
            return true, parent_key
          end
          local fields = redis.pcall("HMGET", key, "ats", "atm", "deid", "defa", "parentKey")
          return fields[1] and not (fields[2] or fields[3] or fields[4]), fields[5]
        end
      end
      local parent_key
      is_plain, parent_key = can_finish(keys[index], count == size + 2)
      if is_plain and parent_key then
        if not parents then
          parents = {}
          for p = 1, #ids do
            parents[p] = false
          end
        end
        parents[index] = parent_key
      end
    end
    if is_plain then
      index = index + 1
    else
      --- @include "remove_at"
      numbers = remove_at(index, plain_count, numbers, ids, keys, locks, parents)
    end
  end

  -- A worker that loses the reply reads the memo, so that only one worker reports the outcome. The
  -- memo is written first, because Redis refuses it whenever it would refuse any write, for example
  -- without memory.
  is_noted = index > 1 and not refusal(redis.pcall("PSETEX", memo, MEMO_LIFE, token))
  if is_noted
    and not refusal(redis.pcall("XTRIM", events, "MAXLEN", "~", event_limit(meta, queue))) then
    local has_left = false
    if #ids > 1 then
      -- Return whether the list ended with these ids, in any order. If so, they are cut off, at
      -- less than a third of the cost of removing them one by one.
      local function trim_tail_if(list, ids)
        local count, is_same = #ids, true
        local tail = redis.pcall("LRANGE", list, string.format("%d", -count), "-1")
        for i = 1, count do -- the first job fetched usually finishes first
          is_same = is_same and tail[count + 1 - i] == ids[i]
        end
        if not is_same then
          local there = {}
          for i = 1, #tail do
            there[tail[i]] = true
          end
          for i = 1, count do
            if not there[ids[i]] then
              return false
            end
            there[ids[i]] = false -- match a repeated id only once
          end
        end
        return redis.pcall("LTRIM", list, "0", string.format("%d", -count - 1)).ok ~= nil
      end
      has_left = trim_tail_if(active, ids)
    end
    index = 1
    while not has_left and ids[index] do
      if redis.pcall("LREM", active, "-1", ids[index]) == 1 then
        index = index + 1
      else
        --- @include "remove_at"
        numbers = remove_at(index, plain_count, numbers, ids, keys, locks, parents)
      end
    end
    local last, notify_last
    if parents then
      --- @include "refusal"

      -- notify_parents(keys, parents, values) -> last, refused: store results of completed children
      -- in their parents, one parent at a time. `parents` has each child's parent key or false.
      -- `last` (or nil) is the set of children that are then their parent's last pending ones:
      -- notify_parent_completed handles those later. `refused` has the indexes of children whose
      -- parent could not be updated, in descending order.
      local function notify_parents(keys, parents, values)
        local families, known = {}, {}
        for index = 1, #keys do
          local parent_key = parents[index]
          local family = known[parent_key]
          if parent_key and not family then
            family = { parent = parent_key, keys = {}, indexes = {} }
            families[#families + 1], known[parent_key] = family, family
          end
          if family then
            local count = #family.keys + 1
            family.keys[count], family.indexes[count] = keys[index], index
          end
        end

        local last, refused = nil, {}
        for f = 1, #families do
          local family = families[f]
          local dependencies = family.parent .. ":dependencies"
          local awaited = redis.pcall("SMISMEMBER", dependencies, unpack(family.keys))
          local pending = redis.pcall("SCARD", dependencies)
          local problem, notified, results = awaited.err or refusal(pending), {}, {}
          for i = 1, problem and 0 or #awaited do
            if awaited[i] == 1 then
              local key = family.keys[i]
              notified[#notified + 1] = key
              results[#results + 1], results[#results + 2] = key, values[family.indexes[i]]
            end
          end
          if not problem and #notified == pending and pending > 0 then
            last = last or {}
            last[notified[pending]] = true
            notified[pending], results[2 * pending - 1], results[2 * pending] = nil, nil, nil
          end
          if not problem and #notified > 0 then
            -- A child stays pending until its result is stored.
            problem = refusal(redis.pcall("HSET", family.parent .. ":processed", unpack(results)))
              or refusal(redis.pcall("SREM", dependencies, unpack(notified)))
          end
          for i = 1, problem and #family.indexes or 0 do
            refused[#refused + 1] = family.indexes[i]
          end
        end
        if #refused > 1 then
          table.sort(refused, function(a, b) return a > b end)
        end
        return last, refused
      end
      local values, refused = { nil, nil, nil, nil }, nil
      for i = 1, #ids do
        values[i] = plain[3 * (numbers and numbers[i] or i) + VALUE]
      end
      last, refused = notify_parents(keys, parents, values)
      if last then
        --- @include "notify_parent_completed"
        notify_last = notify_parent_completed
      end
      for i = 1, #refused do
        --- @include "remove_at"
        --- @include "restore_active"
        restore_active(active, completed, { ids[refused[i]] }, 1)
        numbers = remove_at(refused[i], plain_count, numbers, ids, keys, locks, parents)
      end
    end
    local scored = { nil, nil, nil, nil, nil, nil, nil, nil }
    for i = 1, #ids do
      scored[2 * i - 1], scored[2 * i] = now, ids[i]
    end
    local problem = #ids == 0 or refusal(redis.pcall("ZADD", completed, unpack(scored)))
    while not problem and ids[completions + 1] do
      index = completions + 1
      local key, number = keys[index], numbers and numbers[index] or index
      local value = plain[3 * number + VALUE]
      problem = last and last[key]
        and not pcall(notify_last, key, parents[index], value, tonumber(now))
      if not problem then
        local added = redis.pcall("HSET", key, "returnvalue", value, "finishedOn", now, "atm", "1")
        problem = added ~= 3 and refusal(added)
          or redis.pcall("XADD", events, "*", "event", "completed", "jobId", ids[index],
            "returnvalue", value, "prev", "active").err
      end
      if not problem then
        completions = index
      else
        redis.pcall("HSET", key, "atm", "0") -- the attempt does not count
      end
    end
    if ids[completions + 1] then
      --- @include "restore_active"
      restore_active(active, completed, ids, completions + 1)
    end
    queue.room = queue.room + completions
    queue.blocked = queue.paused or queue.room <= 0
  end

  if completions > 0 and keep then
    local most, age = unpack(keep)
    if most > 0 or age >= 0 then
      --- @include "trim_finished"
      -- The next call removes the rest.
      pcall(trim_finished, prefix, completed, keep, nil, tonumber(now), MOST_TRIMMED)
    end
  end
  if completions < plain_count or others then
    others, codes = others or {}, {}
    local written = {}
    for i = 1, completions do
      written[numbers and numbers[i] or i] = true
    end
    index = 0
    for i = 1, plain_count do
      repeat
        index = index + 1
      until not others[index]
      if written[i] then
        codes[index] = 0
      else
        others[index] = { plain[3 * i + ID], plain[3 * i + TOKEN], COMPLETED,
          plain[3 * i + VALUE], keep or { -1, -1, -1 } }
      end
    end
  end
end

local plain_ended, other_ended = completions, nil
if others then
  --- @include "queue_keys"
  --- @include "settle_outcomes"
  local count = plain_count + other_count
  codes = type(codes) == "table" and codes or {}
  if is_noted then
    -- If Redis refuses everything else, the call stops there and the memo has these codes.
    local known = {}
    for index = 1, completions > 0 and count or 0 do
      known[index] = codes[index] or DENIED
    end
    redis.pcall("SET", memo, cmsgpack.pack({ token, known }), "PX", MEMO_LIFE)
  end
  local settled = settle_outcomes(prefix, queue_keys(prefix), queue, others, count, codes,
    tonumber(now), want > 0)
  redis.pcall("SET", memo, cmsgpack.pack({ token, codes }), "PX", MEMO_LIFE)
  completions, failures = completions + settled.completions, settled.failures
  full, any_delayed = settled.full, settled.any_delayed
  reasons = #settled.reasons > 0 and settled.reasons or 0
  starts_blocked, unfinished = settled.starts_blocked, settled.unfinished
  other_ended = settled.ended
end
-- Delete locks last: a duplicate outcome in this call must find its job locked.
if plain_ended > 0 then
  redis.pcall("DEL", unpack(locks, 1, plain_ended)) -- if refused, they expire
  redis.pcall("SREM", stalled, unpack(ids, 1, plain_ended))
end

local groups
if queue.has_groups then
  --- @include "group_functions"
  --- @include "wake_worker"
  groups = group_functions(prefix, tonumber(now))
  local is_freed, any_room = pcall(groups.free, ids or {}, plain_ended)
  if other_ended then
    local is_also_freed, any_more_room = pcall(groups.free, other_ended, #other_ended)
    any_room = is_freed and any_room or is_also_freed and any_more_room
  end
  if any_room == true then
    wake_worker(marker, queue.blocked)
  end
end

if data_points > 0 then
  local counted = completions
  if counted > 0 and has_begun == 1 then
    redis.pcall("HINCRBY", prefix .. "metrics:completed", "count", counted)
    counted = 0
  end
  if counted + failures > 0 then
    -- Count finished jobs by minute. The list of minutes is `metrics` .. ":data", newest at the
    -- head.
    local function count_finished(metrics, many, data_points, now)
      local previous = redis.call("HMGET", metrics, "prevTS", "prevCount", "count")
      if not previous[1] then
        redis.call("HSET", metrics, "prevTS", now, "prevCount", 0)
      else
        local minutes = math.floor(now / 60000) - math.floor(tonumber(previous[1]) / 60000)
        minutes = math.min(minutes, data_points)
        if minutes > 0 then
          local count = tonumber(previous[3] or 0)
          local points = { count - tonumber(previous[2]) }
          for _ = 2, minutes do
            points[#points + 1] = 0
          end
          for i = 1, #points, 1000 do
            redis.call("LPUSH", metrics .. ":data",
              unpack(points, i, math.min(i + 999, #points)))
          end
          redis.call("LTRIM", metrics .. ":data", 0, data_points - 1)
          redis.call("HSET", metrics, "prevCount", count, "prevTS", now)
        end
      end
      redis.call("HINCRBY", metrics, "count", many)
    end

    local metrics = { prefix .. "metrics:completed", prefix .. "metrics:failed" }
    for kind, many in ipairs({ counted, failures }) do
      if many > 0 then
        pcall(count_finished, metrics[kind], many, data_points, tonumber(now))
      end
    end
  end
end

-- Second half: fetch jobs. -----------------------------------------------------------------------

local MOST_BYTES, MOST_PROMOTED = 2000000, 100
local FIRST_HOLD, FIRST_STEP = 500, 20 -- ms
local HEAD, NEW, NEW_CHILD = 6, 6, 8 -- reply values before the jobs; field counts of new jobs
local limited, next_due, passed_over = 0, 0, 0
local reply = { nil, nil, nil, nil, nil, nil, nil, nil, nil, nil, nil, nil, nil }
local taken = 0
if want > 0 and plain_count + other_count == 0 then
  --- @include "is_out_of_memory"
  full = is_out_of_memory(marker) and 1 or 0
end
if want > 0 and full == 0 then
  local due_score = redis.call("ZRANGE", delayed, "0", "0", "WITHSCORES")[2]
  if due_score and finite(due_score) < (now + 1) * 4096 then
    --- @include "queue_keys"
    --- @include "promote_due"
    promote_due(prefix, queue_keys(prefix), queue, tonumber(now), MOST_PROMOTED)
    due_score = redis.call("ZRANGE", delayed, "0", "0", "WITHSCORES")[2]
  end

  -- A job that asked its queue to wait must not be fetched again by the same call. A job whose
  -- children block its completion still uses its slot.
  local most, starts = want - unfinished, queue.max_starts or max_starts
  if queue.blocked or starts_blocked then
    most = 0
  elseif queue.room < most then
    most = queue.room
  end
  if starts > 0 then
    --- @include "ignore_wrongtype"

    local limiter = prefix .. "limiter"
    local started = finite(ignore_wrongtype(redis.pcall("GET", limiter))) or 0
    if started >= starts then
      limited = math.max(0, redis.call("PTTL", limiter))
      if limited == 0 then -- the window is over, or its key would never expire
        redis.call("DEL", limiter)
        started = 0
      end
    end
    most = math.min(most, math.max(starts - math.floor(started), 0))
  end

  -- Waiting ids: the list from its tail, then by priority.
  local listed, ranked, listed_count, count = nil, nil, 0, 0
  local any_unplaced = false
  if most > 0 and groups then
    listed, ranked, any_unplaced = {}, groups.choose(wait, most)
    count = #ranked
  elseif most > 0 then
    listed = redis.call("LRANGE", wait, most == 1 and "-1" or string.format("%d", -most), "-1")
    if string.sub(listed[most] or "", 1, 2) == "0:" then -- marker of an old version
      listed = redis.call("LRANGE", wait, -most - 1, "-1")
    end
    listed_count, count = #listed, #listed
    if count < most then
      ranked = redis.call("ZRANGE", prefix .. "prioritized", "0", most - count - 1)
      count = count + #ranked
    end
  end

  -- Read the jobs and lock them. Most are new: they have exactly the six fields that every job has.
  -- A new child has two more. The order is that of read_job, which begins with these.
  local NAME, DATA, OPTS, TIMESTAMP, DELAY, PRIORITY, PARENT_KEY, PARENT = 1, 2, 3, 4, 5, 6, 7, 8
  local STARTS, DEFERRED_FAILURE, STALLS, STACKTRACE = 8, 9, 10, 14
  local ids, fields_of, seen, read_unusual = { nil, nil, nil, nil }, nil, count > 1 and {}, nil
  local bytes, size, taken_from_list = 0, HEAD, 0
  local suspects, suspects_listed = nil, 0
  local known_opts
  for index = 1, count do
    local is_listed = index <= listed_count
    local id = is_listed and listed[listed_count + 1 - index] or ranked[index - listed_count]
    local key, fields, is_new, is_child = prefix .. id, false, false, false
    local is_seen = seen and seen[id]
    if not is_seen and string.find(id, "^[%w_-]+$") and id ~= "meta" and id ~= "metrics" then
      local count_of_fields = redis.pcall("HLEN", key)
      if count_of_fields == NEW then
        fields = redis.call("HMGET", key, "name", "data", "opts", "timestamp", "delay", "priority")
      elseif count_of_fields == NEW_CHILD then
        fields = redis.call("HMGET", key, "name", "data", "opts", "timestamp", "delay", "priority",
          "parentKey", "parent")
        is_child = fields[PARENT_KEY] and fields[PARENT]
      end
      is_new = fields and fields[NAME] and fields[DATA] and fields[OPTS] and fields[TIMESTAMP]
        and fields[DELAY] and fields[PRIORITY] and (is_child or count_of_fields == NEW)
    end
    local is_dropped = false
    if not is_new then
      if not read_unusual then
        --- @include "is_reserved_id"
        --- @include "read_job"
        --- @include "ignore_wrongtype"

        -- read_unusual_job(prefix, id, now) -> the fields of a waiting job that has other fields
        -- than a new one, or false if it cannot run. A job whose id is not UTF-8 fails here,
        -- because its id cannot be sent to a worker.
        local function read_unusual_job(prefix, id, now)
          local key = prefix .. id
          local fields = not is_reserved_id(id) and ignore_wrongtype(read_job(key))
          if not fields or fields[4] and not string.find(id, "[\128-\255]") then
            return fields
          end
          local names = " wait paused active prioritized pc delayed completed failed "
            .. "waiting-children stalled stalled-check limiter marker events id repeat "
          if not fields[4]
            and (string.find(id, "^repeat:") or string.find(names, " " .. id .. " ", 1, true)) then
            return false -- a scheduler, or another key that the queue has or may have
          end

          local tail, position = "[\128-\191]", 1
          local forms = {
            "^[%z\1-\127]+",
            "^[\194-\223]" .. tail,
            "^\224[\160-\191]" .. tail,
            "^[\225-\236\238\239]" .. tail .. tail,
            "^\237[\128-\159]" .. tail,
            "^\240[\144-\191]" .. tail .. tail,
            "^[\241-\243]" .. tail .. tail .. tail,
            "^\244[\128-\143]" .. tail .. tail,
          }
          while position <= #id do
            local last
            for i = 1, #forms do
              last = last or select(2, string.find(id, forms[i], position))
            end
            if not last then
              local reason = "its id is not UTF-8"
              redis.call("HSET", key, "failedReason", reason, "finishedOn", now)
              redis.call("ZADD", prefix .. "failed", now, id)
              redis.call("XADD", prefix .. "events", "*", "event", "failed", "jobId", id,
                "failedReason", reason, "prev", "waiting")
              return false
            end
            position = last + 1
          end
          return fields
        end
        read_unusual = read_unusual_job
      end
      local is_marker = string.find(id, "^0:")
      fields = not is_seen and not is_marker and read_unusual(prefix, id, now)
      is_dropped = not fields and not is_marker
      if fields and (finite(fields[STALLS]) or 0) > 0 and not fields[DEFERRED_FAILURE] then
        if may_try == 0 then
          suspects, fields = suspects or {}, false
          suspects[#suspects + 1] = id
          suspects_listed = is_listed and #suspects or suspects_listed
        end
        may_try = 0
      end
    end
    if seen then
      seen[id] = true
    end
    -- A group: this job and the following ones are left to the next call, which gives groups their
    -- turns. Most jobs have the same options, and equal strings are one object in Lua.
    if fields and fields[OPTS] ~= known_opts and not groups then
      known_opts = fields[OPTS]
      if string.find(known_opts or "", "group\"", 1, true) then
        redis.call("HSET", meta, "tb:groups", "1")
        count, any_unplaced = index - 1, true
        break
      end
    end
    if fields then
      bytes = bytes + #(fields[DATA] or "") + #(fields[OPTS] or "") + #(fields[STACKTRACE] or "")
      if bytes > MOST_BYTES and taken > 0 then
        count = index - 1
        break
      end
      redis.call("PSETEX", key .. ":lock", lock_life, token)
      taken = taken + 1
      ids[taken], reply[size + 1] = id, id
      if is_new then
        if is_child then
          reply[size + 2] = 1
          size = size + 1
        end
        local count_of_values = is_child and PARENT_KEY or NEW
        for i = 1, count_of_values do
          reply[size + 1 + i] = fields[i]
        end
        size = size + 1 + count_of_values
      else
        fields_of = fields_of or {}
        fields_of[taken], reply[size + 2] = fields, fields
        size = size + 2
      end
      taken_from_list = is_listed and taken or taken_from_list
    elseif is_dropped then
      passed_over = passed_over == 0 and { 0 } or passed_over
      passed_over[#passed_over + 1] = id
    end
  end

  -- Put jobs into `active` before they leave their old place; if that is refused, nothing has
  -- changed. From here on, settle_cycle finds a job by its lock.
  listed_count = math.min(listed_count, count)
  if suspects then
    --- @include "delayed_score"
    --- @include "restore_waiting"

    passed_over = passed_over == 0 and { 0 } or passed_over
    passed_over[1] = #suspects
    hold_for, hold_step = hold_for or FIRST_HOLD, hold_step or FIRST_STEP
    for i = 1, #suspects do
      local score = delayed_score(delayed, now + hold_for + (i - 1) * hold_step)
      if refusal(redis.pcall("ZADD", delayed, score, suspects[i])) then
        restore_waiting("", {}, delayed, suspects, "ZADD", delayed, score, suspects[i])
      end
    end
    if taken > 0 and refusal(redis.pcall("LPUSH", active, unpack(ids))) then
      restore_waiting(active, {}, delayed, suspects, "LPUSH", active, unpack(ids))
    end
  elseif taken == 1 and listed_count == 1 and count == 1 then
    redis.call("RPOPLPUSH", wait, active)
    listed_count = 0
  elseif taken > 0 then
    redis.call("LPUSH", active, unpack(ids))
  end
  if listed_count > 0 then
    local last = string.format("%d", -listed_count - 1)
    if redis.pcall("LTRIM", wait, "0", last).err then
      --- @include "restore_waiting"
      restore_waiting(active, ids, delayed, suspects or {}, "LTRIM", wait, "0", last)
    end
  end
  if ranked and count > #listed then
    --- @include "restore_waiting"
    local leaving = { "ZREM", prefix .. "prioritized", unpack(ranked, 1, count - #listed) }
    if refusal(redis.pcall(unpack(leaving))) then
      restore_waiting(active, { unpack(ids, taken_from_list + 1) }, delayed,
        { unpack(suspects or {}, suspects_listed + 1) }, unpack(leaving))
    end
  end
  if groups and ranked then
    groups.commit(ranked, count, ids)
  elseif ranked and count < most and count == #listed + #ranked then
    redis.pcall("DEL", prefix .. "pc")
  end

  for i = 1, suspects and #suspects or 0 do
    local delay = hold_for + (i - 1) * hold_step
    redis.call("HSET", prefix .. suspects[i], "delay", delay, "tbho", now + delay)
    redis.call("XADD", events, "*", "event", "delayed", "jobId", suspects[i], "delay", now + delay)
  end
  local counted = taken
  for i = 1, taken do
    local id, fields, times = ids[i], fields_of and fields_of[i], "1"
    if fields then
      times = string.format("%.0f", math.max(0, finite(fields[STARTS]) or 0) + 1)
      fields[STARTS] = times
      counted = fields[DEFERRED_FAILURE] and counted - 1 or counted
    end
    if worker == "" then
      redis.call("HSET", prefix .. id, "processedOn", now, "ats", times)
    else
      redis.call("HSET", prefix .. id, "processedOn", now, "ats", times, "pb", worker)
    end
    redis.call("XADD", events, "*", "event", "active", "jobId", id, "prev", "waiting")
  end
  if starts > 0 and counted > 0 then
    -- Count the starts in the current window, which the first start begins.
    local limiter = prefix .. "limiter"
    local started = redis.pcall("INCRBY", limiter, counted)
    if type(started) == "table" then -- not a number
      redis.pcall("SET", limiter, counted)
      started = counted
    end
    if started == counted then
      if window <= 0 then
        window = math.floor(math.abs(finite(redis.call("HGET", meta, "duration")) or 0))
      end
      redis.pcall("PEXPIRE", limiter, window)
    end
  end
  if count > 0 or any_unplaced then
    redis.call("ZADD", marker, "0", "0")
  elseif due_score then
    next_due = math.floor((finite(due_score) or 0) / 4096)
  end
  local next_check = groups and count == 0 and groups.next_check()
  if next_check and (next_due == 0 or next_check < next_due) then
    next_due = math.floor(next_check)
  end
end

-- Wake workers and reply. ------------------------------------------------------------------------

-- Otherwise the base marker is set, and the next fetch finds the delayed job.
if any_delayed and taken == 0 then
  --- @include "add_delay_marker"
  pcall(add_delay_marker, marker, delayed)
end
-- Do not emit `drained` while the queue is paused, rate-limited, or has delayed jobs.
local fetched = want > 0 and full == 0
  and (taken > 0 or limited > 0 or queue.blocked or next_due > 0 or passed_over ~= 0)
if completions + failures > 0 and not fetched
  and redis.call("EXISTS", wait, active, prefix .. "prioritized") == 0 then
  redis.call("XADD", events, "*", "event", "drained")
end

reply[1], reply[2], reply[3], reply[4] = limited, next_due, full, codes
reply[5], reply[6] = reasons, passed_over
return reply
