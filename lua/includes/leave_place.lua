-- leave_place(base, place, id): remove a waiting job from its set or list.
local function leave_place(base, place, id)
  if place == "wait" or place == "paused" then
    local list = base .. place
    -- Search from the nearer end.
    local is_near_head = 2 * (redis.call("LPOS", list, id) or 0) < redis.call("LLEN", list)
    redis.call("LREM", list, is_near_head and 1 or -1, id)
  else
    redis.call("ZREM", base .. place, id)
  end
end
