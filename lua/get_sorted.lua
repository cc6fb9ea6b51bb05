-- get_sorted: read a range of the jobs in a sorted set.
--
-- KEYS
--   set        zset   the set of a state
-- ARGV
--   prefix            start of every key of this queue
--   start             place of the first job
--   stop              and of the last; a negative one counts from the end
--   lowest_first      "1", or "0": the highest score first
-- RETURNS
--   id, fields, id, fields, ... of the jobs there; ids without a job are left out

local set = unpack(KEYS)
local prefix, start, stop, lowest_first = unpack(ARGV)

--- @include "append_job"

local range = lowest_first == "1" and "ZRANGE" or "ZREVRANGE"
local jobs = {}
for _, id in ipairs(redis.call(range, set, start, stop)) do
  append_job(jobs, prefix, id)
end
return jobs
