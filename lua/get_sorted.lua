-- get_sorted: read a range of jobs from a sorted set.
--
-- KEYS
--   set        zset   sorted set of one state
-- ARGV
--   prefix            queue key prefix
--   start             index of the first job
--   stop              index of the last; negative counts from the end
--   lowest_first      "1", or "0" for highest score first
--   size              stop reading jobs after this many bytes
-- RETURNS
--   looked_at         number of indexes checked; fewer than requested if the jobs are large
--   jobs              id, fields, id, fields, ...; ids without a job are skipped

local set = unpack(KEYS)
local prefix, start, stop, lowest_first, size = unpack(ARGV)

--- @include "append_job"

local range = lowest_first == "1" and "ZRANGE" or "ZREVRANGE"
local ids, jobs = redis.call(range, set, start, stop), {}
local looked_at, bytes = 0, 0
size = tonumber(size)
while looked_at < #ids and bytes < size do
  looked_at = looked_at + 1
  bytes = bytes + append_job(jobs, prefix, ids[looked_at])
end
return { looked_at, jobs }
