-- extend_locks: renew the locks of the jobs that a worker is running.
--
-- KEYS
--   stalled   set   ids that the next sweep gives to another worker if their lock is gone
-- ARGV
--   prefix          start of every key of this queue
--   held            msgpack array: job_id, token, job_id, token, ...
--   duration        life of a lock from now, ms
-- RETURNS
--   the ids whose lock this worker holds no more
-- EFFECTS
--   each lock still held lives `duration` from now; its id leaves `stalled`

local stalled = unpack(KEYS)
local prefix, held, duration = unpack(ARGV)

--- @include "typed"

local lost = {}
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
    else
      lost[#lost + 1] = job_id
    end
  end
  if #renewed > 0 then
    typed(redis.pcall("SREM", stalled, unpack(renewed))) -- what is no set is dropped by a sweep
  end
end
return lost
