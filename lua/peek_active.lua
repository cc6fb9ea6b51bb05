-- peek_active: see who runs which jobs, and for how long their locks live.
--
-- KEYS
--   active   list   jobs that run; the one at the tail is the oldest
-- ARGV
--   prefix          start of every key of this queue
--   start           place of the first job, counted from the oldest
--   stop            and of the last
--   longest         bytes of a field after which it is cut
-- RETURNS
--   id, name, worker, started, lock, ... of each job: `lock` is the life of its lock in ms, -1 for
--   ever, -2 if it has none; what is not known is empty

local active = unpack(KEYS)
local prefix, start, stop, longest = unpack(ARGV)

--- @include "cut_field"

local ids, jobs = redis.call("LRANGE", active, -1 - stop, -1 - start), {}
for place = #ids, 1, -1 do
  local job = prefix .. ids[place]
  jobs[#jobs + 1] = ids[place]
  jobs[#jobs + 1] = cut_field(job, "name", longest)
  jobs[#jobs + 1] = cut_field(job, "pb", longest)
  jobs[#jobs + 1] = cut_field(job, "processedOn", longest)
  jobs[#jobs + 1] = redis.call("PTTL", job .. ":lock")
end
return jobs
