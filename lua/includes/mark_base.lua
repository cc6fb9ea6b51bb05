-- mark_base(marker, blocked): wake one worker that waits, unless nobody may take a job.
local function mark_base(marker, blocked)
  if not blocked then
    redis.pcall("ZADD", marker, 0, "0") -- or they look by themselves, later
  end
end
