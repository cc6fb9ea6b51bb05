-- survey_queue: read a summary of a queue, in any state.
--
-- KEYS
--   wait                     list     waiting jobs, taken from the tail
--   active                   list     running jobs
--   completed                zset     completed jobs
--   failed                   zset     failed jobs
--   delayed                  zset     delayed jobs, by due time
--   prioritized              zset     waiting jobs with a priority
--   waiting_children         zset     parents waiting for their children
--   paused                   list     waiting jobs while the queue is paused
--   meta                     hash     queue settings
--   counter                  string   last id assigned
--   schedulers               zset     job schedulers, by the ms of their next run
--   limiter                  string   number of jobs started in the window
--   note                     string   reason for the pause, in words
--   metrics_completed        hash     total of completed jobs
--   metrics_completed_data   list     counts per minute, newest first
--   metrics_failed           hash     total of failed jobs
--   metrics_failed_data      list     counts per minute, newest first
-- ARGV
--   prefix                            queue key prefix
--   longest                           bytes of options above which they are not read
--   minutes                           number of minutes of metrics to read
-- RETURNS
--   counts                            one number per state
--   meta                              paused, version, concurrency, max, duration; each "" if
--                                     missing
--   first                             id, timestamp, options, ... of the next job in each waiting
--                                     list or set
--   texts                             counter, limiter, note; each "" if missing
--   life                              remaining ms of the limiter, as in PTTL
--   next                              lowest scores of delayed and schedulers; each "" if empty
--   completed                         count, prevTS, prevCount; each false if missing
--   completed_minutes
--   failed                            count, prevTS, prevCount
--   failed_minutes

local wait, active, completed, failed, delayed, prioritized, waiting_children, paused, meta,
  counter, schedulers, limiter, note, metrics_completed, metrics_completed_data, metrics_failed,
  metrics_failed_data = unpack(KEYS)
local prefix, longest, minutes = unpack(ARGV)

--- @include "cut_field"
--- @include "ignore_wrongtype"

local function text(key)
  local found = ignore_wrongtype(redis.pcall("GET", key))
  return found and string.sub(found, 1, 2048) or ""
end

local function lowest(key)
  return (ignore_wrongtype(redis.pcall("ZRANGE", key, 0, 0, "WITHSCORES")) or {})[2] or ""
end

local function totals(key)
  local found = ignore_wrongtype(redis.pcall("HMGET", key, "count", "prevTS", "prevCount")) or {}
  return { found[1] or false, found[2] or false, found[3] or false }
end

local function points(key)
  return ignore_wrongtype(redis.pcall("LRANGE", key, 0, minutes - 1)) or {}
end

local first = {}
for _, id in ipairs({
  redis.call("LRANGE", wait, -1, -1)[1] or "",
  redis.call("LRANGE", paused, -1, -1)[1] or "",
  redis.call("ZRANGE", prioritized, 0, 0)[1] or "",
}) do
  local job = prefix .. id
  if id ~= "" and redis.call("TYPE", job).ok == "hash" then
    local short = redis.call("HSTRLEN", job, "opts") <= tonumber(longest)
    first[#first + 1] = id
    first[#first + 1] = cut_field(job, "timestamp", 32)
    first[#first + 1] = short and redis.call("HGET", job, "opts") or ""
  end
end
return {
  {
    redis.call("LLEN", wait),
    redis.call("LLEN", active),
    redis.call("ZCARD", completed),
    redis.call("ZCARD", failed),
    redis.call("ZCARD", delayed),
    redis.call("ZCARD", prioritized),
    redis.call("ZCARD", waiting_children),
    redis.call("LLEN", paused),
  },
  {
    redis.call("HEXISTS", meta, "paused") == 1 and "1" or "",
    cut_field(meta, "version", 300),
    cut_field(meta, "concurrency", 32),
    cut_field(meta, "max", 32),
    cut_field(meta, "duration", 32),
  },
  first,
  { text(counter), text(limiter), text(note) },
  redis.call("PTTL", limiter),
  { lowest(delayed), lowest(schedulers) },
  totals(metrics_completed),
  minutes == "0" and {} or points(metrics_completed_data),
  totals(metrics_failed),
  minutes == "0" and {} or points(metrics_failed_data),
}
