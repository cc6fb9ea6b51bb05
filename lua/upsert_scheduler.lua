-- upsert_scheduler: make a job scheduler or change it, and add the run that comes next.
--
-- KEYS
--   schedulers      zset     job schedulers, by the ms of the run that comes next
--   scheduler       hash     what this one is: name, data, every, offset, ...
--   meta            hash     settings of the queue
--   wait            list     jobs that may run, taken from the tail
--   paused          list     the same while the queue is paused
--   active          list     jobs that run
--   prioritized     zset     jobs that may run, by priority
--   delayed         zset     jobs that may run later
--   events          stream   what happened
-- ARGV
--   prefix                   start of every key of this queue
--   scheduler_id
--   now                      ms
--   due                      ms when a cron rule comes next; "": the rule is `every`
--   every                    ms; "" for a cron rule
--   offset                   ms; "": not given
--   start                    ms before which there is no run; "": any
--   fields                   msgpack map: what is to stand in the hash, but for `offset` and `ic`
--   name                     of the jobs
--   data                     of the jobs
--   opts                     of the jobs, JSON with the rule in `repeat`
--   keeps                    "1": change nothing if all this stands there already, and its next
--                            run is there, or has a limit, which it has reached then
-- RETURNS
--   the id of the run that comes next, and 1 if anything was changed, else 0; or -10, -11: there
--   is a job at the instant of the run, or at each of the next 32
-- EFFECTS
--   as those of BullMQ 6. A pending run is replaced; one that is active, or has ended, stays. With
--   `keeps`, the first run of a changed `every` is due that long after the last run

local schedulers, scheduler, meta, wait, paused, active, prioritized, delayed, events =
  unpack(KEYS)
local prefix, scheduler_id, now, due, every, offset, start, fields, name, data, opts, keeps =
  unpack(ARGV)

--- @include "finite"
--- @include "next_slot"
--- @include "queue_state"
--- @include "event_limit"
--- @include "delete_job"
--- @include "make_run"
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

-- Where the pending run is; a run that a worker has taken, or that has ended, is in none of these.
local place, position = nil, nil
if is_pending then
  for _, set in ipairs({ delayed, prioritized }) do
    if not place and redis.call("ZSCORE", set, pending) then
      place, position = set, redis.call("ZSCORE", set, pending)
    end
  end
  for _, list in ipairs({ wait, paused }) do
    if not place and redis.call("LPOS", list, pending) then
      place = list
    end
  end
end

local is_cron = due ~= ""
local is_same_every = not is_cron and last and finite(known.every) == every
if is_cron then
  due = tonumber(due)
elseif is_same_every and place then
  due = last
elseif is_same_every then
  due = next_slot(last, every, offset or finite(known.offset) or 0, now)
else
  due = math.max(now, start or 0)
  local former = keeps == "1" and last and finite(known.every)
  if former and (not place or (finite(known.ic) or 1) > 1) then
    -- An app that declares another interval does not start a new count: versions that take turns
    -- would run the task at each start.
    due = math.max(due, (place and last - former or last) + every)
  end
  if offset then
    local aligned = math.floor(due / every) * every + offset
    local is_past = aligned < due or aligned == due and not start
    due = is_past and aligned + every or aligned
  end
end
-- Another rule begins anew once the last run of the former one has been taken.
local former_offset = (place or is_same_every) and finite(known.offset)
offset = offset or former_offset or (is_cron and 0 or due % every)

local function is_taken()
  local id = string.format("repeat:%s:%.0f", scheduler_id, due)
  return redis.call("EXISTS", prefix .. id) == 1 and not (place and id == pending)
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
local former = place and redis.call("HGETALL", prefix .. pending)

-- What the pending run is brought back with must be allowed before it is taken away.
if score then
  redis.call("ZADD", schedulers, "XX", score, scheduler_id)
  redis.call("HSET", scheduler, "ic", known.ic or 1)
  redis.call("DEL", prefix .. "tb:")
  if position then
    redis.call("ZREM", place, "")
  elseif place then
    redis.call("LREM", place, 1, "")
  end
end

local function write()
  if position then
    redis.call("ZREM", place, pending)
  elseif place then
    redis.call("LREM", place, -1, pending)
  end
  if place then
    delete_job(prefix .. pending)
  end
  redis.call("DEL", scheduler)
  for field, value in pairs(fields) do
    redis.call("HSET", scheduler, field, value)
  end
  redis.call("HSET", scheduler, "offset", offset, "ic", known.ic or 1)
  add_run(prefix, queue, scheduler_id, now, run, name, data)
end

-- All or nothing: a scheduler without a run that comes next would have ended.
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
  if place then
    redis.pcall("HSET", prefix .. pending, unpack(former))
  end
  if position then
    redis.pcall("ZADD", place, position, pending)
  elseif place then
    redis.pcall("LREM", place, 0, pending)
    local back = redis.pcall("RPUSH", place, pending)
    if type(back) == "table" then
      redis.pcall("LPUSH", place, pending)
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
