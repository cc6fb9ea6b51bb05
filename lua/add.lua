-- add: add jobs to a queue, in order. A job that is sent again in its call gets its first answer.
--
-- KEYS
--   memo               string   the last call of this producer's lane, its mark, and its answers
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
--   call                        number of this call on its lane; the next call has a higher one
--   mark                        hex digits that tell it from another producer's call of that number
--   memo_life                   ms for which the answers are remembered
--   jobs                        msgpack array of jobs, each an array:
--                               id ("": the counter's), name, data, opts, timestamp, delay,
--                               priority, lifo, special: false, or a map of
--                                 children: true, it waits for its children
--                                 dedup: {id, ttl (0: none), extend, replace, keep_last}
--                                 parent: {key, id, queue key, stored JSON}
--                               place in the call, where that is not its place here
-- RETURNS
--   per job two places: its id, and 0 added, 1 there was one of that id, 2 deduplicated (the id is
--   the owner's), -5 no such parent, -7 the job has another parent; nothing at all, and nothing is
--   done, if the lane has gone on, or the number was used by another
-- EFFECTS
--   as BullMQ's; `deduplicated` is emitted as by version 6, without `debounced`

local memo, counter, meta, wait, paused, active, prioritized, priority_counter, delayed,
  waiting_children, completed, marker, events = unpack(KEYS)
local prefix, now, call, mark, memo_life, jobs = unpack(ARGV)

--- @include "queue_state"
--- @include "event_limit"
--- @include "mark_base"
--- @include "mark_delay"

local told = {} -- the answers of this call, by place
local last = redis.call("GET", memo)
if last then
  local number, theirs, rest = string.match(last, "^(%d+):(%x*):()")
  if number == call and theirs == mark then
    told = cmsgpack.unpack(string.sub(last, rest))
  elseif number and tonumber(number) >= tonumber(call) then
    return {} -- it was late on its way, or the lane is that of a cloned process
  end
end

jobs = cmsgpack.unpack(jobs)
local replies, fifo, lifo, classes, any_delayed = {}, {}, {}, {}, false

-- A job without its parent is refused before it takes a number; all others take one each.
local new, numbers = {}, 0
for i = 1, #jobs do
  local place, special = jobs[i][10] or i, jobs[i][9]
  if told[2 * place] then
    replies[2 * i - 1], replies[2 * i] = told[2 * place - 1], told[2 * place]
  else
    new[#new + 1] = i
    if special and special.parent and redis.call("EXISTS", special.parent[1]) == 0 then
      replies[2 * i] = -5
    else
      numbers = numbers + 1
    end
  end
end
if #new == 0 then
  return replies
end
local number = redis.call("INCRBY", counter, numbers) - numbers
local queue = queue_state(meta, active, wait, paused)

local added = {}
local function write()
  for n = 1, #new do
    local i = new[n]
    local id, name, data, opts, timestamp, delay, priority, is_lifo, special, place =
      unpack(jobs[i])
    local code = replies[2 * i] or 0
    if code == 0 then
      number = number + 1
      if id == "" then
        id = string.format("%.0f", number)
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
    end
    if code == 0 and special and special.dedup then
      --- @include "deduplicate"
      local owner = deduplicate(prefix, id, jobs[i], active, delayed, events)
      if owner then
        id, code = owner, 2
      end
    end
    if code == 0 then
      local key = prefix .. id
      added[#added + 1] = id
      redis.call("XADD", events, "*", "event", "added", "jobId", id, "name", name)
      redis.call("HSET", key, "name", name, "data", data, "opts", opts,
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
      elseif delay > 0 then
        --- @include "delayed_score"
        local due = timestamp + delay
        any_delayed = true
        redis.call("ZADD", delayed, delayed_score(delayed, due), id)
        redis.call("XADD", events, "*", "event", "delayed", "jobId", id, "delay", due)
      else
        if priority > 0 then
          classes[#classes + 1] = priority
          classes[#classes + 1] = id
        elseif is_lifo then
          lifo[#lifo + 1] = id
        else
          fifo[#fifo + 1] = id
        end
        redis.call("XADD", events, "*", "event", "waiting", "jobId", id)
      end
    end
    replies[2 * i - 1], replies[2 * i] = id, code
    place = place or i
    told[2 * place - 1], told[2 * place] = id, code
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
redis.call("SET", memo, call .. ":" .. mark .. ":" .. cmsgpack.pack(told), "PX", memo_life)
return replies
