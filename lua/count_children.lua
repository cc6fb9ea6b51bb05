-- count_children: count a job's children by outcome.
--
-- KEYS
--   processed         hash   completed children
--   dependencies      set    pending children
--   failed_children   hash   children whose failure is ignored
--   unsuccessful      zset   children whose failure fails the job
-- RETURNS
--   one number per key

local processed, dependencies, failed_children, unsuccessful = unpack(KEYS)

return {
  redis.call("HLEN", processed),
  redis.call("SCARD", dependencies),
  redis.call("HLEN", failed_children),
  redis.call("ZCARD", unsuccessful),
}
