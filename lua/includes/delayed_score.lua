-- delayed_score(delayed, due) -> the score of a job due at `due` ms, after others due in the same
-- ms. Up to 4096 of them keep their order.
local function delayed_score(delayed, due)
  local first = due * 4096
  local last = first + 4095
  local taken = redis.call("ZREVRANGEBYSCORE", delayed, last, first, "WITHSCORES", "LIMIT", 0, 1)
  if taken[2] then
    return math.min(tonumber(taken[2]) + 1, last)
  end
  return first
end
