-- add: add jobs to a queue, in order. A repeated call returns the first answers.
--
-- KEYS
--   memo               string   number, mark and answers of the last call in its sequence
--   previous           string   memo of the call that must come before this one
--   counter            string   last job number
--   meta               hash     queue settings
--   wait               list     waiting jobs, taken from the tail
--   paused             list     waiting jobs while the queue is paused
--   active             list     running jobs
--   prioritized        zset     waiting jobs with a priority
--   priority_counter   string   orders jobs of equal priority
--   delayed            zset     delayed jobs, by due time
--   waiting_children   zset     parents waiting for their children
--   completed          zset     completed jobs
--   marker             zset     wakes workers
--   events             stream   queue events
-- ARGV
--   prefix                      queue key prefix
--   now                         ms
--   call                        number of this call in its sequence; the next call has a higher one
--   mark                        hex digits that distinguish it from another producer's call with
--                               that number
--   memo_life                   ms to remember the answers
--   after                       how `previous` begins if that call was executed, or "" if there is
--                               none
--   runs                        msgpack array of runs: jobs that differ only in their data. Each is
--                               an array: count, position of the first in the call, name, opts,
--                               timestamp, delay, priority (as text, because Redis formats each Lua
--                               number with printf), lifo, id ("" to use the counter), special
--                               (false or a map of
--                                 children: true if it waits for its children
--                                 group: id of its group
--                                 dedup: {id, ttl or 0, extend, replace, keep_last}
--                                 parent: {key, id, queue key, stored JSON})
--                               The data of each job follows, one argument each
-- RETURNS
--   all answers of this call, including those of an earlier execution, as four values per run of
--   jobs: position of the first job, its id, code, number of jobs. Their ids count up from the
--   first. Code 0 is added, 1 the id exists, 2 deduplicated (the id is the owner's), -5 no such
--   parent, -7 the job has another parent. Empty, and nothing is done, if the sequence has moved on
--   or another producer used the number. -12, and nothing is done, if the previous call was not
--   executed
-- EFFECTS
--   as in BullMQ; `deduplicated` is emitted as in version 6, without `debounced`

local memo, previous, counter, meta, wait, paused, active, prioritized, priority_counter, delayed,
  waiting_children, completed, marker, events = unpack(KEYS)
local prefix, now, call, mark, memo_life, after, runs = unpack(ARGV)

--- @include "queue_state"
--- @include "event_limit"
--- @include "wake_worker"
--- @include "add_delay_marker"

-- Redis 7.0 needs 46k instructions per job in a bulk of 250 (BullMQ: 161k). With whole jobs in the
-- msgpack, one answer each and numbers not as text, it was 73k. Without the separate loop for plain
-- jobs, and with each number formatted, it was 49k.
local redis, args = redis, ARGV
local answers, answered = {}, {}
local last = redis.call("GET", memo)
if last then
  local number, theirs, rest = string.match(last, "^(%d+):(%x*):()")
  if number == call and theirs == mark then
    answers = cmsgpack.unpack(string.sub(last, rest))
    for i = 1, #answers, 4 do
      for position = answers[i], answers[i] + answers[i + 3] - 1 do
        answered[position] = true
      end
    end
  elseif number and tonumber(number) >= tonumber(call) then
    -- A delayed duplicate, or a sequence shared with a cloned process.
    return {}
  end
end

-- A job whose parent is missing is refused and uses no number.
runs = cmsgpack.unpack(runs)
local new, numbers, before_data = 0, 0, #args
for r = 1, #runs do
  local count, position, special = runs[r][1], runs[r][2], runs[r][10]
  before_data = before_data - count
  local fresh = count
  if answers[1] then
    for n = position, position + count - 1 do
      fresh = answered[n] and fresh - 1 or fresh
    end
  end
  new = new + fresh
  if special and special.parent and redis.call("EXISTS", special.parent[1]) == 0 then
    special.orphan = true
  else
    numbers = numbers + fresh
  end
end
if new == 0 then
  return answers
end
if after ~= "" and string.sub(redis.call("GET", previous) or "", 1, #after) ~= after then
  return -12 -- keeps the jobs of a queue in order: see Bulk
end
local number = numbers > 0 and redis.call("INCRBY", counter, numbers) - numbers or 0
local queue = queue_state(meta, active, wait, paused)

local added, fifo, lifo, classes, any_delayed = {}, {}, {}, {}, false
local grouped, known = {}, {}
local function write()
  local at, format, is_repeated = before_data, string.format, answers[1]
  local digits = { [0] = "0", "1", "2", "3", "4", "5", "6", "7", "8", "9" }
  for r = 1, #runs do
    local count, position, name, opts, timestamp, delay, priority, is_lifo, own_id, special =
      unpack(runs[r])
    local is_plain = own_id == "" and not special and not is_repeated
    if is_plain then
      local size = #answers
      answers[size + 1], answers[size + 2] = position, format("%.0f", number + 1)
      answers[size + 3], answers[size + 4] = 0, count
    end
    if is_plain and delay == "0" and priority == "0" and not is_lifo and number >= 0 then
      -- Fast path: most jobs have no delay, priority, own id or parent.
      local before, waiting, first, tens = #added, #fifo, number, nil
      for n = 1, count do
        number = first + n
        local ones = number % 10
        if n == 1 or ones == 0 then
          tens = number > 9 and format("%.0f", (number - ones) / 10) or ""
        end
        local id = tens .. digits[ones]
        added[before + n], fifo[waiting + n] = id, id
        redis.call("XADD", events, "*", "event", "added", "jobId", id, "name", name)
        redis.call("HSET", prefix .. id, "name", name, "data", args[at + n], "opts", opts,
          "timestamp", timestamp, "delay", "0", "priority", "0")
        redis.call("XADD", events, "*", "event", "waiting", "jobId", id)
      end
      at, count = at + count, 0
    end
    for n = 0, count - 1 do
      at = at + 1
      local id, code = own_id, 0
      if is_plain then
        number = number + 1
        id = format("%.0f", number)
      elseif answered[position + n] then
        code = nil
      elseif special and special.orphan then
        code = -5
      else
        number = number + 1
        if id == "" then
          id = format("%.0f", number)
        elseif redis.call("EXISTS", prefix .. id) == 1 then
          code = 1
          if special and special.parent then
            --- @include "attach_to_parent"
            code = attach_to_parent(prefix, id, special.parent, completed, tonumber(now))
          end
          if code == 1 then
            redis.call("XADD", events, "*", "event", "duplicated", "jobId", id)
          end
        end
        if code == 0 and special and special.dedup then
          --- @include "delete_job"

          -- deduplicate(prefix, id, dedup, job, active, delayed, events) -> id of the current
          -- owner, or nil to add this job as the new owner. `dedup` is as in
          -- `add`; `job` has name, data, opts.
          local function deduplicate(prefix, id, dedup, job, active, delayed, events)
            local name, ttl, extend, replace, keep_last = unpack(dedup)
            local key, next_key = prefix .. "de:" .. name, prefix .. "dn:" .. name
            local owner = redis.call("GET", key)
            if owner and redis.call("PTTL", key) == -1
              and redis.call("EXISTS", prefix .. owner) == 0 then
              -- The owner is gone, and nothing else would ever release the id.
              redis.call("DEL", key)
              owner = false
            end
            if not owner then
              if ttl > 0 and not keep_last then
                redis.call("SET", key, id, "PX", ttl)
              else
                redis.call("SET", key, id)
              end
              return nil
            end
            if keep_last and redis.call("LPOS", active, owner) then
              redis.call("DEL", next_key)
              redis.call("HSET", next_key, "name", job.name, "data", job.data, "opts", job.opts,
                "jid", id)
              redis.call("PERSIST", key)
            elseif replace then
              if redis.call("ZREM", delayed, owner) == 0 then
                return owner
              end
              delete_job(prefix .. owner)
              redis.call("XADD", events, "*", "event", "removed", "jobId", owner, "prev", "delayed")
              if ttl == 0 then
                redis.call("SET", key, id)
              elseif extend then
                redis.call("SET", key, id, "PX", ttl)
              else
                redis.call("SET", key, id, "KEEPTTL")
              end
              redis.call("XADD", events, "*", "event", "deduplicated", "jobId", id,
                "deduplicationId", name, "deduplicatedJobId", owner)
              return nil
            elseif extend and ttl > 0 then
              redis.call("SET", key, owner, "PX", ttl)
            end
            redis.call("XADD", events, "*", "event", "deduplicated", "jobId", owner,
              "deduplicationId", name, "deduplicatedJobId", id)
            return owner
          end
          local new_job = { name = name, data = args[at], opts = opts }
          local owner = deduplicate(prefix, id, special.dedup, new_job, active, delayed, events)
          if owner then
            id, code = owner, 2
          end
        end
      end
      if code == 0 then
        local key = prefix .. id
        if own_id ~= "" then
          redis.call("DEL", key .. ":tb:items") -- A removed job with this id may have left items.
        end
        added[#added + 1] = id
        redis.call("XADD", events, "*", "event", "added", "jobId", id, "name", name)
        redis.call("HSET", key, "name", name, "data", args[at], "opts", opts,
          "timestamp", timestamp, "delay", delay, "priority", priority)
        if special then
          if special.dedup then
            redis.call("HSET", key, "deid", special.dedup[1])
          end
          if special.parent then
            redis.call("HSET", key, "parentKey", special.parent[1], "parent", special.parent[4])
            redis.call("SADD", special.parent[1] .. ":dependencies", key)
          end
        end
        if special and special.children then
          redis.call("ZADD", waiting_children, timestamp, id)
          redis.call("XADD", events, "*", "event", "waiting-children", "jobId", id)
        elseif delay ~= "0" then
          --- @include "delayed_score"
          local due = tonumber(timestamp) + tonumber(delay)
          any_delayed = true
          redis.call("ZADD", delayed, delayed_score(delayed, due), id)
          redis.call("XADD", events, "*", "event", "delayed", "jobId", id, "delay", due)
        else
          if special and special.group then
            local ids = not is_lifo and known[special.group]
            if not ids then
              ids = {}
              grouped[#grouped + 1] = { group = special.group, is_lifo = is_lifo, ids = ids }
              known[special.group] = not is_lifo and ids or nil
            end
            ids[#ids + 1] = id
          elseif priority ~= "0" then
            classes[#classes + 1] = tonumber(priority)
            classes[#classes + 1] = id
          elseif is_lifo then
            lifo[#lifo + 1] = id
          else
            fifo[#fifo + 1] = id
          end
          redis.call("XADD", events, "*", "event", "waiting", "jobId", id)
        end
      end
      if code and not is_plain then
        local size = #answers
        answers[size + 1], answers[size + 2] = position + n, id
        answers[size + 3], answers[size + 4] = code, 1
      end
    end
  end

  if #fifo > 0 then
    redis.call("LPUSH", queue.target, unpack(fifo))
  end
  if #lifo > 0 then
    redis.call("RPUSH", queue.target, unpack(lifo))
  end
  if #classes > 0 then
    local count = #classes / 2
    local rank = redis.call("INCRBY", priority_counter, count) - count
    for i = 1, #classes, 2 do
      rank = rank + 1
      classes[i] = classes[i] * 0x100000000 + rank % 0x100000000
    end
    redis.call("ZADD", prioritized, unpack(classes))
  end
  if #grouped > 0 then
    --- @include "place_in_group"
    local weight = redis.call("EXISTS", prefix .. "tb:groups") == 0 and 1 or nil
    for i = 1, #grouped do
      place_in_group(prefix, grouped[i].group, weight, grouped[i].ids, grouped[i].is_lifo)
    end
  end
  if #fifo + #lifo + #classes + #grouped > 0 then
    wake_worker(marker, queue.blocked)
  end
  if any_delayed then
    add_delay_marker(marker, delayed)
  end
end

-- All or nothing: a job must not exist without being in a list or set, nor after its producer got
-- an error.
local is_written, problem = pcall(write)
if not is_written then
  --- @include "undo_add"
  for i = 1, #added do
    undo_add(prefix, added[i], { delayed, waiting_children, prioritized }, queue.target)
  end
  error(problem, 0)
end
redis.call("XTRIM", events, "MAXLEN", "~", event_limit(meta, queue))
redis.call("SET", memo, call .. ":" .. mark .. ":" .. cmsgpack.pack(answers), "PX", memo_life)
return answers
