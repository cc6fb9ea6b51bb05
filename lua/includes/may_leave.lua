-- may_leave(set): raise, while nothing is written, if members cannot be removed from the set. A job
-- is put into its new place before it leaves the old one; so that it is not in both for good, ask
-- for that first.
local function may_leave(set)
  redis.call("ZREM", set, "")
end
