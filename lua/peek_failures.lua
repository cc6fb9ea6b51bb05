-- peek_failures: read what failed jobs have in common, and no more of them than that.
--
-- KEYS
--   failed   zset   jobs that failed for good
-- ARGV
--   prefix          start of every key of this queue
--   start           place of the first job, counted from the newest
--   stop            and of the last
--   longest         bytes of a field after which it is cut
-- RETURNS
--   id, name, reason, finished, ... of each job: what is not known is empty

local failed = unpack(KEYS)
local prefix, start, stop, longest = unpack(ARGV)

--- @include "cut_field"

local ids, jobs = redis.call("ZREVRANGE", failed, start, stop), {}
for place = 1, #ids do
  local job = prefix .. ids[place]
  jobs[#jobs + 1] = ids[place]
  jobs[#jobs + 1] = cut_field(job, "name", longest)
  jobs[#jobs + 1] = cut_field(job, "failedReason", longest)
  jobs[#jobs + 1] = cut_field(job, "finishedOn", longest)
end
return jobs
