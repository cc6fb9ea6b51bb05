-- begin_wait: begin or continue a running job's wait for a signal, or its sleep.
--
-- KEYS
--   job      hash     the job
--   lock     string   the job's lock
--   steps    hash     the job's steps
--   delayed  zset     delayed jobs, by due time
--   meta     hash     queue settings
--   marker   zset     wakes workers
--   events   stream   queue events
--   counter  string   the queue's number of added jobs
-- ARGV
--   prefix            queue key prefix
--   token             token of the job's lock
--   now               ms
--   life              ms to keep the job's steps after the wait's end
--   field             the wait
--   signal            name of the signal, or "" for a sleep
--   record            JSON to store when the wait begins
--   due               ms when the wait ends without a signal
--   can_end           "1" if the wait ends then, "0" if it continues without a limit
--   child_id          id of the wait's child job
--   name              fields of that job
--   data
--   opts
--   parent
-- RETURNS
--   0 while the wait is not over; an array of its end as JSON and the signal's value (or "") when
--   it is over; or the reason for refusing: -1 no such job, -2 no lock, -6 another worker's lock
-- EFFECTS
--   the wait is a delayed child of the job, as in a flow of BullMQ. If another job has its id, it
--   gets another one, which is stored with the steps. A signal that was sent before ends the wait
--   immediately. The result of the child, `{"value":…}` or null, is its end as well

local job, lock, steps, delayed, meta, marker, events, counter = unpack(KEYS)
local prefix, token, now, life, field, signal, record, due, can_end, child_id, name, data, opts,
  parent = unpack(ARGV)

--- @include "check_job"
--- @include "claim_steps"
--- @include "keep_steps"
--- @include "delete_job"
--- @include "delayed_score"
--- @include "add_delay_marker"
--- @include "event_limit"
--- @include "undo_add"
--- @include "update_waits"

local refused = check_job(job, lock, token)
if refused ~= 0 then
  return refused
end
claim_steps(job, steps, life)
local ended, other_id = unpack(redis.call("HMGET", steps, "done:" .. field, "child:" .. field))
child_id = other_id or child_id
local child, dependencies = prefix .. child_id, job .. ":dependencies"

local function sent_value(number)
  return redis.call("HGET", steps, "sent:" .. signal .. "#" .. number)
end

local function end_wait(rest, value)
  local ended = "{\"at\":" .. now .. rest .. "}"
  redis.call("HSET", steps, "done:" .. field, ended)
  if redis.call("HEXISTS", steps, field) == 0 then
    redis.call("HSET", steps, field, record) -- it ends as it begins
  end
  update_waits(steps, signal, child_id)
  keep_steps(job, steps, life)
  return { ended, value }
end

if ended then
  local number = string.match(ended, "\"sent\":(%d+)")
  return { ended, number and sent_value(number) or "" }
end

if signal ~= "" then
  local next_number = (tonumber(redis.call("HGET", steps, "taken:" .. signal)) or 0) + 1
  local value = sent_value(next_number)
  if value then
    if redis.call("SREM", dependencies, child) == 1 and redis.call("ZREM", delayed, child_id) == 1
    then
      delete_job(child)
    end
    local reply = end_wait(",\"sent\":" .. next_number, value)
    redis.call("HSET", steps, "taken:" .. signal, next_number)
    return reply
  end
end

-- The child ends when its time is up, or when another client has stored a value and promoted it.
local result = redis.call("HGET", job .. ":processed", child)
local has_failed = not result and redis.call("HEXISTS", job .. ":failed", child) == 1
local is_pending = redis.call("SISMEMBER", dependencies, child) == 1
  and redis.call("EXISTS", child) == 1
if result or has_failed then
  redis.call("HDEL", job .. (result and ":processed" or ":failed"), child)
  local value = result and string.match(result, "^{\"value\":.*}$")
  if value then
    return end_wait("," .. string.sub(value, 2, -2), "")
  end
  if result and can_end == "1" then
    return end_wait("", "")
  end
end
if not is_pending and can_end == "1" and tonumber(due) <= tonumber(now) then
  return end_wait("", "")
end
redis.call("HDEL", job, "tbwc") -- it has something to wait for
if is_pending then
  return 0
end

local function add_child()
  local delay = math.max(0, tonumber(due) - tonumber(now))
  redis.call("HSET", child, "name", name, "data", data, "opts", opts, "timestamp", now,
    "delay", delay, "priority", 0, "parentKey", job, "parent", parent)
  redis.call("HSET", steps, field, record)
  if signal ~= "" then
    update_waits(steps, signal, nil, child_id)
  end
  keep_steps(job, steps, delay + tonumber(life))
  redis.call("INCRBY", counter, 1)
  redis.call("XADD", events, "MAXLEN", "~", event_limit(meta), "*", "event", "added",
    "jobId", child_id, "name", name)
  redis.call("XADD", events, "*", "event", "delayed", "jobId", child_id, "delay", due)
  redis.call("SADD", dependencies, child)
  redis.call("ZADD", delayed, delayed_score(delayed, tonumber(due)), child_id)
  add_delay_marker(marker, delayed)
end

-- Another job may have the id, because producers can choose ids.
local number = 1
while redis.call("EXISTS", child) == 1 do
  number = number + 1
  if number > 100 then
    error("other jobs have all ids of this wait", 0)
  end
  child = prefix .. child_id .. "-" .. number
end
if number > 1 then
  child_id = child_id .. "-" .. number
  redis.call("HSET", steps, "child:" .. field, child_id)
end

-- All or nothing: the job must not wait for a child that nothing ends.
local is_added, problem = pcall(add_child)
if not is_added then
  undo_add(prefix, child_id, { delayed }, prefix .. "wait")
  error(problem, 0)
end
return 0
