-- may_shorten(list): raise, while nothing is written, if entries cannot be cut off the list; see
-- may_leave.
local function may_shorten(list)
  redis.call("LTRIM", list, 0, -1)
end
