-- add: add jobs to a queue, in order. A job that is sent again in its call gets its first answer.
--
-- KEYS
--   memo               string   number, mark and answers of the last call in its sequence
--   former             string   the memo of the call that must go before this one
--   counter            string   number of the last job
--   meta               hash     settings of the queue
--   wait               list     jobs that may run, taken from the tail
--   paused             list     the same while the queue is paused
--   active             list     jobs that run
--   prioritized        zset     jobs that may run, by priority
--   priority_counter   string   keeps jobs of equal priority in order
--   delayed            zset     jobs that may run later
--   waiting_children   zset     parents that wait for their children
--   completed          zset     jobs that are done
--   marker             zset     wakes workers
--   events             stream   what happened
-- ARGV
--   prefix                      start of every key of this queue
--   now                         ms
--   call                        number of this call in its sequence; the next call has a higher one
--   mark                        hex digits that tell it from another producer's call of that number
--   memo_life                   ms for which the answers are remembered
--   after                       how `former` begins if that call was executed; "": there is none
--   runs                        msgpack array of runs: jobs that differ in nothing but their data.
--                               Each an array: how many, place of the first in the call, name,
--                               opts, timestamp, delay, priority (as text: Redis prints each number
--                               of Lua's by printf), lifo, id ("": the counter's), special: false,
--                               or a map of
--                                 children: true, it waits for its children
--                                 dedup: {id, ttl (0: none), extend, replace, keep_last}
--                                 parent: {key, id, queue key, stored JSON}
--                               Behind it stands the data of each job, an argument of its own
-- RETURNS
--   all that was answered in this call, now and before, four places for each run of answers: the
--   place of its first job, the id of that job, 0 added, 1 there was one of that id, 2 deduplicated
--   (the id is the owner's), -5 no such parent, -7 the job has another parent, and how many jobs it
--   is for, whose ids count on from the first; nothing at all, and nothing is done, if the sequence
--   has gone on, or the number was used by another; -12, and nothing is done, if the call that
--   goes before was not executed
-- EFFECTS
--   as BullMQ's; `deduplicated` is emitted as by version 6, without `debounced`

local memo, former, counter, meta, wait, paused, active, prioritized, priority_counter, delayed,
  waiting_children, completed, marker, events = unpack(KEYS)
local prefix, now, call, mark, memo_life, after, runs = unpack(ARGV)

--- @include "queue_state"
--- @include "event_limit"
--- @include "mark_base"
--- @include "mark_delay"

-- A job of a bulk of 250 takes 46k instructions of Redis 7.0 (BullMQ's: 161k). With whole jobs in
-- the msgpack, an answer for each, and numbers that are not text, it took 73k; without a loop of
-- their own for the plainest jobs, and with each number formatted, 49k.
local redis, words = redis, ARGV
local answers, told = {}, {}
local last = redis.call("GET", memo)
if last then
  local number, theirs, rest = string.match(last, "^(%d+):(%x*):()")
  if number == call and theirs == mark then
    answers = cmsgpack.unpack(string.sub(last, rest))
    for i = 1, #answers, 4 do
      for place = answers[i], answers[i] + answers[i + 3] - 1 do
        told[place] = true
      end
    end
  elseif number and tonumber(number) >= tonumber(call) then
    return {} -- it was late on its way, or the sequence is that of a cloned process
  end
end

-- A job without its parent is refused before it takes a number; all others take one each.
runs = cmsgpack.unpack(runs)
local new, numbers, before_data = 0, 0, #words
for r = 1, #runs do
  local count, place, special = runs[r][1], runs[r][2], runs[r][10]
  before_data = before_data - count
  local fresh = count
  if answers[1] then
    for n = place, place + count - 1 do
      fresh = told[n] and fresh - 1 or fresh
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
if after ~= "" and string.sub(redis.call("GET", former) or "", 1, #after) ~= after then
  return -12 -- jobs of one queue stay in order: see Bulk
end
local number = numbers > 0 and redis.call("INCRBY", counter, numbers) - numbers or 0
local queue = queue_state(meta, active, wait, paused)

local added, fifo, lifo, classes, any_delayed = {}, {}, {}, {}, false
local function write()
  local at, format, is_repeated = before_data, string.format, answers[1]
  local digits = { [0] = "0", "1", "2", "3", "4", "5", "6", "7", "8", "9" }
  for r = 1, #runs do
    local count, place, name, opts, timestamp, delay, priority, is_lifo, own_id, special =
      unpack(runs[r])
    local is_plain = own_id == "" and not special and not is_repeated
    if is_plain then
      local size = #answers
      answers[size + 1], answers[size + 2] = place, format("%.0f", number + 1)
      answers[size + 3], answers[size + 4] = 0, count
    end
    if is_plain and delay == "0" and priority == "0" and not is_lifo and number >= 0 then
      -- What most jobs are: they wait for nothing but their turn.
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
        redis.call("HSET", prefix .. id, "name", name, "data", words[at + n], "opts", opts,
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
      elseif told[place + n] then
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
          --- @include "deduplicate"
          local new_job = { name = name, data = words[at], opts = opts }
          local owner = deduplicate(prefix, id, special.dedup, new_job, active, delayed, events)
          if owner then
            id, code = owner, 2
          end
        end
      end
      if code == 0 then
        local key = prefix .. id
        added[#added + 1] = id
        redis.call("XADD", events, "*", "event", "added", "jobId", id, "name", name)
        redis.call("HSET", key, "name", name, "data", words[at], "opts", opts,
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
          if priority ~= "0" then
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
        answers[size + 1], answers[size + 2] = place + n, id
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
  if #fifo + #lifo + #classes > 0 then
    mark_base(marker, queue.blocked)
  end
  if any_delayed then
    mark_delay(marker, delayed)
  end
end

-- All or nothing: a job that is in no list or set must not seem to be there, and none must be there
-- whose producer was told that it is not.
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
