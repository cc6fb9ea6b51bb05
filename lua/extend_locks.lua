-- extend_locks: renew the locks of a worker's running jobs.
--
-- KEYS
--   stalled   set   ids that the next sweep gives to another worker if their lock is gone
-- ARGV
--   prefix          queue key prefix
--   held            msgpack array: job_id, token, job_id, token, ...
--   duration        ms from now until a lock expires
-- RETURNS
--   lost            ids whose lock this worker no longer holds
--   cancelled       of the others, the cancelled ones: job_id, reason, job_id, reason, ...
-- EFFECTS
--   each lock still held lives `duration` from now; its id leaves `stalled`

local stalled = unpack(KEYS)
local prefix, held, duration = unpack(ARGV)

--- @include "is_cancelled"
--- @include "ignore_wrongtype"

local lost, cancelled = {}, {}
local jobs = cmsgpack.unpack(held)
for first = 1, #jobs, 2000 do
  local last = math.min(first + 1998, #jobs)
  local locks, renewed = {}, {}
  for i = first, last, 2 do
    locks[#locks + 1] = prefix .. jobs[i] .. ":lock"
  end
  local holders = redis.call("MGET", unpack(locks))
  for i = 1, #locks do
    local job_id, token = jobs[first + 2 * i - 2], jobs[first + 2 * i - 1]
    if holders[i] == token then
      redis.call("PEXPIRE", locks[i], duration)
      renewed[#renewed + 1] = job_id
      local deferred_failure = redis.pcall("HGET", prefix .. job_id, "defa")
      if type(deferred_failure) == "string" and is_cancelled(deferred_failure) then
        cancelled[#cancelled + 1] = job_id
        cancelled[#cancelled + 1] = deferred_failure
      end
    else
      lost[#lost + 1] = job_id
    end
  end
  if #renewed > 0 then
    -- A sweep deletes a key of another type.
    ignore_wrongtype(redis.pcall("SREM", stalled, unpack(renewed)))
  end
end
return { lost, cancelled }
