-- mark_base(marker, blocked): wake one worker that waits, unless nobody may take a job.
local function mark_base(marker, blocked)
  if not blocked then
    redis.call("ZADD", marker, 0, "0")
  end
end
