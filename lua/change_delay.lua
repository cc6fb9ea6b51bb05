-- change_delay: change when a delayed job is due.
--
-- KEYS
--   job       hash     the job
--   delayed   zset     delayed jobs, by due time
--   meta      hash     queue settings
--   events    stream   queue events
--   marker    zset     wakes workers
-- ARGV
--   job_id
--   now                ms
--   delay              ms from now
-- RETURNS
--   0, or -1 if there is no such job, -3 if it is not delayed

local job, delayed, meta, events, marker = unpack(KEYS)
local job_id, now, delay = unpack(ARGV)

--- @include "is_hash"
--- @include "event_limit"
--- @include "delayed_score"
--- @include "add_delay_marker"

if not is_hash(job) then
  return -1
end
local due = tonumber(now) + tonumber(delay)
if not redis.call("ZSCORE", delayed, job_id) then
  return -3
end
redis.call("ZADD", delayed, delayed_score(delayed, due), job_id)
redis.call("HSET", job, "delay", delay)
redis.call("XADD", events, "MAXLEN", "~", event_limit(meta), "*",
  "event", "delayed", "jobId", job_id, "delay", due)
add_delay_marker(marker, delayed)
return 0
