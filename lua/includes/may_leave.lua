-- may_leave(set): raise, before anything is written, if removing members would be refused. A job
-- enters its new place before it leaves the old one; without this check, it could stay in both.
local function may_leave(set)
  redis.call("ZREM", set, "")
end
