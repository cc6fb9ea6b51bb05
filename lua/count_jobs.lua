-- count_jobs: count the jobs in each state.
--
-- KEYS
--   wait               list   jobs that may run
--   active             list   jobs that run
--   completed          zset   jobs that are done
--   failed             zset   jobs that failed for good
--   delayed            zset   jobs that may run later
--   prioritized        zset   jobs that may run, by priority
--   waiting_children   zset   parents that wait for their children
--   paused             list   jobs that may run when the queue is resumed
-- RETURNS
--   one number for each key

local wait, active, completed, failed, delayed, prioritized, waiting_children, paused =
  unpack(KEYS)

return {
  redis.call("LLEN", wait),
  redis.call("LLEN", active),
  redis.call("ZCARD", completed),
  redis.call("ZCARD", failed),
  redis.call("ZCARD", delayed),
  redis.call("ZCARD", prioritized),
  redis.call("ZCARD", waiting_children),
  redis.call("LLEN", paused),
}
