-- get_listed: read a range of the jobs in one list, or in two that are one after the other.
--
-- KEYS
--   newer    list   of its jobs the one at the tail is the oldest
--   older    list   jobs that are older than all of those; need not exist
-- ARGV
--   prefix          start of every key of this queue
--   start           place of the first job
--   stop            and of the last; a negative one counts from the end
--   oldest_first    "1", or "0": the newest first
--   size            bytes after which no more jobs are read
-- RETURNS
--   looked_at       how many places were looked at: not all, if the jobs have many bytes
--   jobs            id, fields, id, fields, ... of the jobs there; ids without a job are left out

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
