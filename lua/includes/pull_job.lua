-- pull_job(base, id) -> the name of the set or list that the job was removed from, or "unknown".
local function pull_job(base, id)
  local sets = { "completed", "waiting-children", "delayed", "failed", "prioritized" }
  for i = 1, #sets do
    if redis.call("ZREM", base .. sets[i], id) == 1 then
      return sets[i]
    end
  end
  local lists = { "wait", "paused", "active" }
  for i = 1, #lists do
    if redis.call("LREM", base .. lists[i], -1, id) == 1 then
      return lists[i]
    end
  end
  return "unknown"
end
