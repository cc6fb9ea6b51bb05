-- count_finished(metrics, many, data_points, now): count finished jobs by minute. The list of
-- minutes is `metrics` .. ":data", newest at the head.
local function count_finished(metrics, many, data_points, now)
  local previous = redis.call("HMGET", metrics, "prevTS", "prevCount", "count")
  if not previous[1] then
    redis.call("HSET", metrics, "prevTS", now, "prevCount", 0)
  else
    local minutes = math.floor(now / 60000) - math.floor(tonumber(previous[1]) / 60000)
    minutes = math.min(minutes, data_points)
    if minutes > 0 then
      local count = tonumber(previous[3] or 0)
      local points = { count - tonumber(previous[2]) }
      for _ = 2, minutes do
        points[#points + 1] = 0
      end
      for i = 1, #points, 1000 do
        redis.call("LPUSH", metrics .. ":data",
          unpack(points, i, math.min(i + 999, #points)))
      end
      redis.call("LTRIM", metrics .. ":data", 0, data_points - 1)
      redis.call("HSET", metrics, "prevCount", count, "prevTS", now)
    end
  end
  redis.call("HINCRBY", metrics, "count", many)
end
