-- get_listed: read a range of jobs from one list, or from two consecutive lists.
--
-- KEYS
--   newer    list   jobs, oldest at the tail
--   older    list   older jobs, may not exist
-- ARGV
--   prefix          queue key prefix
--   start           index of the first job
--   stop            index of the last; negative counts from the end
--   oldest_first    "1", or "0" for newest first
--   size            stop reading jobs after this many bytes
-- RETURNS
--   looked_at       number of indexes checked; fewer than requested if the jobs are large
--   jobs            id, fields, id, fields, ...; ids without a job are skipped

local newer, older = unpack(KEYS)
local prefix, start, stop, oldest_first, size = unpack(ARGV)

--- @include "append_job"

local newer_count = redis.call("LLEN", newer)
local count = newer_count + redis.call("LLEN", older)
start, stop = tonumber(start), tonumber(stop)
start = math.max(0, start < 0 and start + count or start)
stop = math.min(count - 1, stop < 0 and stop + count or stop)
if start > stop then
  return { 0, {} }
end
if oldest_first == "1" then
  start, stop = count - 1 - stop, count - 1 - start
end

local ids = {}
if start < newer_count then
  ids = redis.call("LRANGE", newer, start, math.min(stop, newer_count - 1))
end
if stop >= newer_count then
  local first = math.max(start - newer_count, 0)
  for _, id in ipairs(redis.call("LRANGE", older, first, stop - newer_count)) do
    ids[#ids + 1] = id
  end
end
local jobs, looked_at, bytes = {}, 0, 0
size = tonumber(size)
while looked_at < #ids and bytes < size do
  looked_at = looked_at + 1
  local place = oldest_first == "1" and #ids + 1 - looked_at or looked_at
  bytes = bytes + append_job(jobs, prefix, ids[place])
end
return { looked_at, jobs }
