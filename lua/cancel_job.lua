-- cancel_job: fail a job that is not running, or ask the worker that runs it to stop it.
--
-- KEYS
--   job        hash     the job
--   requests   stream   cancel requests to taskbull workers
--   parents    list     sets of pending children to cancel as well
-- ARGV
--   prefix              queue key prefix
--   job_id
--   now                 ms
--   reason              failedReason of the job; begins with "cancelled: "
--   longest             maximum length of a list to search for the job
--   again               "1" if this call may have been executed before
-- RETURNS
--   answer              1 if it was not running and has failed; 2 if it will fail and not be
--                       retried; 3 the same, but its worker cannot be notified; 4 if it had
--                       finished; -1 no such job
--   more                1 if cancel_children must cancel its children
-- EFFECTS
--   a waiting job fails as if a worker had failed it, but without an attempt or a stack. An active
--   job, a scheduler's next run, or a job in a list that is too long gets the field `defa`: the
--   next worker that fetches it, even in Node, fails it. The lock shows whether the worker can be
--   notified

local job, requests, parents = unpack(KEYS)
local prefix, job_id, now, reason, longest, again = unpack(ARGV)

--- @include "cancel_waiting"

local BEFORE_START, REQUESTED, UNSTOPPABLE, TOO_LATE, NO_JOB = 1, 2, 3, 4, -1
local MOST_REQUESTS, LIFE = 1000, 3600000

local function answer(code)
  return { code, redis.call("EXISTS", parents) }
end

-- Mark a running job; the first reason is kept. If a taskbull worker does not get the request, its
-- next heartbeat finds the mark.
local function request()
  local deferred_failure = redis.call("HGET", job, "defa")
  if is_cancelled(deferred_failure) then
    reason = deferred_failure
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

-- Answer for a finished job. If an earlier execution of this call finished it, repeat that answer.
-- If it was cancelled, make sure its children are cancelled.
local function answer_finished(state)
  local failed_reason, finished_on = unpack(redis.call("HMGET", job, "failedReason", "finishedOn"))
  if state == "completed" or not is_cancelled(failed_reason) then
    return answer(TOO_LATE)
  end
  if redis.call("EXISTS", parents) == 0 then
    queue_child_cancels(prefix, job_id, true, parents)
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
  return answer_finished(found)
end
local was_this = redis.call("GET", prefix .. "tb:cancelling:" .. job_id .. ":at") == now
return answer(again == "1" and was_this and BEFORE_START or NO_JOB)
