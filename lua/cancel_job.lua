-- cancel_job: let a job fail that is not running, or ask the worker that runs it to stop it.
--
-- KEYS
--   job        hash     the job
--   requests   stream   what workers of ours are asked to stop
--   parents    list     sets of pending children that are to be cancelled, too
-- ARGV
--   prefix              start of every key of this queue
--   job_id
--   now                 ms
--   reason              the job's failedReason, which begins with "cancelled: "
--   longest             how long a list may be in which the job is searched
--   again               "1": the call may have been executed before
-- RETURNS
--   answer              1: it was not running, and has failed; 2: it ends, and does not begin
--                       again; 3: the same, but its worker cannot be told; 4: it had ended;
--                       -1: no such job
--   more                1 if children are to be cancelled, by cancel_children
-- EFFECTS
--   a job that waits has failed as by a worker, but for its attempts and its stacks. One that is
--   active, the next run of a scheduler, or in a list that is too long, gets the field `defa`:
--   whoever takes it next, Node too, lets it fail. The lock says which worker can be told

local job, requests, parents = unpack(KEYS)
local prefix, job_id, now, reason, longest, again = unpack(ARGV)

--- @include "cancel_waiting"

local BEFORE_START, REQUESTED, UNSTOPPABLE, TOO_LATE, NO_JOB = 1, 2, 3, 4, -1
local MOST_REQUESTS, LIFE = 1000, 3600000

local function answer(code)
  return { code, redis.call("EXISTS", parents) }
end

-- A running job is marked; the first reason stands. One of our workers is told, too; if that is
-- refused, its next heartbeat finds the mark.
local function request()
  local doom = redis.call("HGET", job, "defa")
  if is_cancelled(doom) then
    reason = doom
  end
  local token = redis.call("GET", job .. ":lock")
  redis.call("HSET", job, "defa", reason)
  if not token then
    return REQUESTED
  elseif string.sub(token, 1, 3) ~= "tb:" then
    return UNSTOPPABLE
  end
  redis.pcall("XADD", requests, "MAXLEN", "~", MOST_REQUESTS, "*", "id", job_id, "token", token,
    "reason", reason)
  redis.pcall("PEXPIRE", requests, LIFE)
  return REQUESTED
end

-- A job that has ended. If this very call has ended it, that is the answer; and the children of one
-- that was cancelled are taken up again.
local function look_back(state)
  local failed_reason, finished_on = unpack(redis.call("HMGET", job, "failedReason", "finishedOn"))
  if state == "completed" or not is_cancelled(failed_reason) then
    return answer(TOO_LATE)
  end
  if redis.call("EXISTS", parents) == 0 then
    leave_children(prefix, job_id, true, parents)
  end
  if failed_reason ~= reason or again ~= "1" then
    return answer(TOO_LATE)
  end
  return answer(finished_on == now and BEFORE_START or REQUESTED)
end

local found =
  cancel_waiting(prefix, job_id, reason, tonumber(now), tonumber(longest), parents)
if found == "ended" then
  return answer(BEFORE_START)
elseif found == "marked" then
  return answer(REQUESTED)
elseif found == "active" then
  return answer(request())
elseif found then
  return look_back(found)
end
local was_this = redis.call("GET", prefix .. "tb:cancelling:" .. job_id .. ":at") == now
return answer(again == "1" and was_this and BEFORE_START or NO_JOB)
