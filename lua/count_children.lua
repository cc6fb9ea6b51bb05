-- count_children: count the children of a job by what became of them.
--
-- KEYS
--   processed         hash   those that are done
--   dependencies      set    those that are pending
--   failed_children   hash   those whose failure is ignored
--   unsuccessful      zset   those whose failure fails the job
-- RETURNS
--   one number for each key

local processed, dependencies, failed_children, unsuccessful = unpack(KEYS)

return {
  redis.call("HLEN", processed),
  redis.call("SCARD", dependencies),
  redis.call("HLEN", failed_children),
  redis.call("ZCARD", unsuccessful),
}
