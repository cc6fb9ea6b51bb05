-- survey_queue: look at a queue as a whole, whatever is in it.
--
-- KEYS
--   wait               list   jobs that may run, taken from the tail
--   active             list   jobs that run
--   completed          zset   jobs that are done
--   failed             zset   jobs that failed for good
--   delayed            zset   jobs that may run later
--   prioritized        zset   jobs that may run, by priority
--   waiting_children   zset   parents that wait for their children
--   paused             list   jobs that may run when the queue is resumed
--   meta               hash   the queue's own fields
-- ARGV
--   prefix                    start of every key of this queue
--   longest                   bytes of options above which they are not read
-- RETURNS
--   counts                    one number for each state
--   paused                    1 if the queue is paused, else 0
--   version                   what its producer wrote about itself; false: nothing
--   first                     timestamp, options, ... of the jobs that come next, one of each list

local wait, active, completed, failed, delayed, prioritized, waiting_children, paused, meta =
  unpack(KEYS)
local prefix, longest = unpack(ARGV)

local first = {}
for _, id in ipairs({
  redis.call("LRANGE", wait, -1, -1)[1] or "",
  redis.call("LRANGE", paused, -1, -1)[1] or "",
  redis.call("ZRANGE", prioritized, 0, 0)[1] or "",
}) do
  local job = prefix .. id
  if id ~= "" and redis.call("TYPE", job).ok == "hash" then
    local short = redis.call("HSTRLEN", job, "opts") <= tonumber(longest)
    first[#first + 1] = redis.call("HGET", job, "timestamp") or ""
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
  redis.call("HEXISTS", meta, "paused"),
  redis.call("HGET", meta, "version"),
  first,
}
