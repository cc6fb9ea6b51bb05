-- upsert_scheduler: create or change a job scheduler, and add its next run.
--
-- KEYS
--   schedulers      zset     job schedulers, by the ms of their next run
--   scheduler       hash     the scheduler: name, data, every, offset, ...
--   meta            hash     queue settings
--   wait            list     waiting jobs, taken from the tail
--   paused          list     waiting jobs while the queue is paused
--   active          list     running jobs
--   prioritized     zset     waiting jobs with a priority
--   delayed         zset     delayed jobs, by due time
--   events          stream   queue events
-- ARGV
--   prefix                   queue key prefix
--   scheduler_id
--   now                      ms
--   due                      ms of the next run of a cron rule, or "" if the rule is `every`
--   every                    ms; "" for a cron rule
--   offset                   ms, or "" if not given
--   start                    ms before which there is no run, or ""
--   fields                   msgpack map: fields to store in the hash, except `offset` and `ic`
--   name                     for its jobs
--   data                     for its jobs
--   opts                     for its jobs, JSON with the rule in `repeat`
--   keeps                    "1" to change nothing if the stored scheduler is the same, and its
--                            next run exists or its limit is reached
-- RETURNS
--   id of the next run, and 1 if anything was changed, else 0. Or "" and -10 if another job has the
--   id of the cron run, -11 if the slot and each of the next 32 are taken
-- EFFECTS
--   as in BullMQ 6. A pending run is replaced; an active or finished one stays. With `keeps`, the
--   first run of a changed `every` is due that long after the last run

local schedulers, scheduler, meta, wait, paused, active, prioritized, delayed, events =
  unpack(KEYS)
local prefix, scheduler_id, now, due, every, offset, start, fields, name, data, opts, keeps =
  unpack(ARGV)

--- @include "finite"
--- @include "queue_state"
--- @include "event_limit"
--- @include "delete_job"
--- @include "add_run"
--- @include "undo_add"

now, every, offset, start = tonumber(now), tonumber(every), tonumber(offset), tonumber(start)
fields = cmsgpack.unpack(fields)
local known, stored = {}, redis.call("HGETALL", scheduler)
for i = 1, #stored, 2 do
  known[stored[i]] = stored[i + 1]
end
local score = redis.call("ZSCORE", schedulers, scheduler_id)
local last, pending = finite(score), score and "repeat:" .. scheduler_id .. ":" .. score
local is_pending = pending and redis.call("EXISTS", prefix .. pending) == 1

if keeps == "1" and pending and (is_pending or known.limit) then
  local is_same = not offset or finite(known.offset) == offset
  for field in pairs(known) do
    is_same = is_same and (field == "offset" or field == "ic" or fields[field] ~= nil)
  end
  for field, value in pairs(fields) do
    is_same = is_same and known[field] == value
  end
  if is_same then
    return { pending, 0 }
  end
end

-- Find the pending run. A run that was fetched or has finished is in none of these.
local holder, old_score = nil, nil
if is_pending then
  for _, set in ipairs({ delayed, prioritized }) do
    if not holder and redis.call("ZSCORE", set, pending) then
      holder, old_score = set, redis.call("ZSCORE", set, pending)
    end
  end
  for _, list in ipairs({ wait, paused }) do
    if not holder and redis.call("LPOS", list, pending) then
      holder = list
    end
  end
end

local is_cron = due ~= ""
local is_same_every = not is_cron and last and finite(known.every) == every
if is_cron then
  due = tonumber(due)
elseif is_same_every and holder then
  due = last
elseif is_same_every then
  due = next_slot(last, every, offset or finite(known.offset) or 0, now)
else
  due = math.max(now, start or 0)
  local previous = keeps == "1" and last and finite(known.every)
  if previous and (not holder or (finite(known.ic) or 1) > 1) then
    -- An app that declares another interval does not restart the count. Otherwise, alternating
    -- versions would run the task at every start.
    due = math.max(due, (holder and last - previous or last) + every)
  end
  if offset then
    local aligned = math.floor(due / every) * every + offset
    local is_past = aligned < due or aligned == due and not start
    due = is_past and aligned + every or aligned
  end
end
-- A changed rule keeps the stored offset only until the pending run has been fetched.
local previous_offset = (holder or is_same_every) and finite(known.offset)
offset = offset or previous_offset or (is_cron and 0 or due % every)

local function is_taken()
  local id = string.format("repeat:%s:%.0f", scheduler_id, due)
  return redis.call("EXISTS", prefix .. id) == 1 and not (holder and id == pending)
end
if is_cron and is_taken() then
  return { "", -10 }
end
for tries = 1, 33 do
  if not is_taken() then
    break
  elseif tries == 33 then
    return { "", -11 }
  end
  due = due + every
end

local queue = queue_state(meta, active, wait, paused)
local run = make_run(scheduler_id, now, due, cjson.decode(opts), 1, is_cron)
local previous = holder and redis.call("HGETALL", prefix .. pending)

-- Before removing the pending run, check that undo could restore it.
if score then
  redis.call("ZADD", schedulers, "XX", score, scheduler_id)
  redis.call("HSET", scheduler, "ic", known.ic or 1)
  redis.call("DEL", prefix .. "tb:")
  if old_score then
    redis.call("ZREM", holder, "")
  elseif holder then
    redis.call("LREM", holder, 1, "")
  end
end

local function write()
  if old_score then
    redis.call("ZREM", holder, pending)
  elseif holder then
    redis.call("LREM", holder, -1, pending)
  end
  if holder then
    delete_job(prefix .. pending)
  end
  redis.call("DEL", scheduler)
  for field, value in pairs(fields) do
    redis.call("HSET", scheduler, field, value)
  end
  redis.call("HSET", scheduler, "offset", offset, "ic", known.ic or 1)
  add_run(prefix, queue, scheduler_id, now, run, name, data)
end

-- All or nothing: a scheduler without a next run would stop.
local function undo()
  undo_add(prefix, run.id, { delayed, prioritized }, queue.target)
  redis.pcall("DEL", scheduler)
  if stored[1] then
    redis.pcall("HSET", scheduler, unpack(stored))
  end
  if score then
    redis.pcall("ZADD", schedulers, score, scheduler_id)
  else
    redis.pcall("ZREM", schedulers, scheduler_id)
  end
  if holder then
    redis.pcall("HSET", prefix .. pending, unpack(previous))
  end
  if old_score then
    redis.pcall("ZADD", holder, old_score, pending)
  elseif holder then
    redis.pcall("LREM", holder, 0, pending)
    local back = redis.pcall("RPUSH", holder, pending)
    if type(back) == "table" then
      redis.pcall("LPUSH", holder, pending)
    end
  end
end
local is_written, problem = pcall(write)
if not is_written then
  undo()
  error(problem, 0)
end
redis.call("XTRIM", events, "MAXLEN", "~", event_limit(meta, queue))
return { run.id, 1 }
