-- get_metrics: read how many jobs ended in each minute.
--
-- KEYS
--   metrics       hash   how many in all
--   points        list   how many in each minute, newest first
-- ARGV
--   start                place of the first minute
--   stop                 and of the last
-- RETURNS
--   totals               count, prevTS, prevCount
--   points
--   count                of all points

local metrics, points = unpack(KEYS)
local start, stop = unpack(ARGV)

return {
  redis.call("HMGET", metrics, "count", "prevTS", "prevCount"),
  redis.call("LRANGE", points, start, stop),
  redis.call("LLEN", points),
}
