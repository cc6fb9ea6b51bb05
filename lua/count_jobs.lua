-- count_jobs: count the jobs in each state.
--
-- KEYS
--   wait               list   waiting jobs
--   active             list   running jobs
--   completed          zset   completed jobs
--   failed             zset   failed jobs
--   delayed            zset   delayed jobs, by due time
--   prioritized        zset   waiting jobs with a priority
--   waiting_children   zset   parents waiting for their children
--   paused             list   waiting jobs while the queue is paused
-- RETURNS
--   one number per key

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
