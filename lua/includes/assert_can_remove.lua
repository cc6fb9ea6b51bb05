-- assert_can_remove(set): raise, before anything is written, if removing members would be refused.
-- A job enters its new place before it leaves the old one; without this check, it could stay in
-- both.
local function assert_can_remove(set)
  redis.call("ZREM", set, "")
end
