-- may_shorten(list): raise, before anything is written, if trimming the list would be refused. See
-- may_leave.
local function may_shorten(list)
  redis.call("LTRIM", list, 0, -1)
end
