-- survey_queue: look at a queue as a whole, whatever is in it.
--
-- KEYS
--   wait                     list     jobs that may run, taken from the tail
--   active                   list     jobs that run
--   completed                zset     jobs that are done
--   failed                   zset     jobs that failed for good
--   delayed                  zset     jobs that may run later
--   prioritized              zset     jobs that may run, by priority
--   waiting_children         zset     parents that wait for their children
--   paused                   list     jobs that may run when the queue is resumed
--   meta                     hash     the queue's own fields
--   counter                  string   the last id that was given out
--   schedulers               zset     job schedulers, by the ms of the run that comes next
--   limiter                  string   how many jobs have started in the window
--   note                     string   why the queue is paused, in words
--   metrics_completed        hash     how many jobs have completed
--   metrics_completed_data   list     the same for each minute, newest first
--   metrics_failed           hash     how many jobs have failed
--   metrics_failed_data      list     the same for each minute, newest first
-- ARGV
--   prefix                            start of every key of this queue
--   longest                           bytes of options above which they are not read
--   minutes                           for how many minutes the counts are read
-- RETURNS
--   counts                            one number for each state
--   meta                              paused, version, concurrency, max, duration: "" if not there
--   first                             id, timestamp, options, ... of the jobs that come next, one
--                                     of each list
--   texts                             counter, limiter, note: "" if not there
--   life                              of the limiter, ms, as PTTL has it
--   next                              the lowest scores of delayed and schedulers: "" if none
--   completed                         count, prevTS, prevCount: false if not there
--   completed_minutes
--   failed                            count, prevTS, prevCount
--   failed_minutes

local wait, active, completed, failed, delayed, prioritized, waiting_children, paused, meta,
  counter, schedulers, limiter, note, metrics_completed, metrics_completed_data, metrics_failed,
  metrics_failed_data = unpack(KEYS)
local prefix, longest, minutes = unpack(ARGV)

--- @include "cut_field"
--- @include "typed"

local function text(key)
  local found = typed(redis.pcall("GET", key))
  return found and string.sub(found, 1, 2048) or ""
end

local function lowest(key)
  return (typed(redis.pcall("ZRANGE", key, 0, 0, "WITHSCORES")) or {})[2] or ""
end

local function totals(key)
  local found = typed(redis.pcall("HMGET", key, "count", "prevTS", "prevCount")) or {}
  return { found[1] or false, found[2] or false, found[3] or false }
end

local function points(key)
  return typed(redis.pcall("LRANGE", key, 0, minutes - 1)) or {}
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
