-- wake_worker(marker, blocked): wake one idle worker, unless no job may start.
local function wake_worker(marker, blocked)
  if not blocked then
    redis.pcall("ZADD", marker, 0, "0") -- if refused, workers poll later
  end
end
