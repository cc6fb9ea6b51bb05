-- get_sorted: read a range of the jobs in a sorted set.
--
-- KEYS
--   set        zset   the set of a state
-- ARGV
--   prefix            start of every key of this queue
--   start             place of the first job
--   stop              and of the last; a negative one counts from the end
--   lowest_first      "1", or "0": the highest score first
--   size              bytes after which no more jobs are read
-- RETURNS
--   looked_at         how many places were looked at: not all, if the jobs have many bytes
--   jobs              id, fields, id, fields, ... of the jobs there; ids without a job are left out

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
