-- peek_active: list running jobs with their workers and lock lifetimes.
--
-- KEYS
--   active   list   running jobs, oldest at the tail
-- ARGV
--   prefix          queue key prefix
--   start           index of the first job, counted from the oldest
--   stop            index of the last
--   longest         bytes to keep of each field
-- RETURNS
--   id, name, worker, started, lock, ... of each job. `lock` is its remaining ms, -1 if it never
--   expires, -2 if there is none. Unknown values are ""

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
