-- get_metrics: read how many jobs finished in each minute.
--
-- KEYS
--   metrics       hash   totals
--   points        list   counts per minute, newest first
-- ARGV
--   start                index of the first minute
--   stop                 index of the last
-- RETURNS
--   totals               count, prevTS, prevCount
--   points
--   count                number of all points

local metrics, points = unpack(KEYS)
local start, stop = unpack(ARGV)

return {
  redis.call("HMGET", metrics, "count", "prevTS", "prevCount"),
  redis.call("LRANGE", points, start, stop),
  redis.call("LLEN", points),
}
