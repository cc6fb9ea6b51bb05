-- undo_flow: remove a tree of jobs whose producer has broken off, a piece at a time.
--
-- KEYS
--   flows   zset   roots of trees of which pieces are missing, by ms when to give up
-- ARGV
--   now            ms
--   size           how many children to look at
-- RETURNS
--   key of the root, "" if no tree is overdue; 1 if it is gone, 0 if there is more to do
-- EFFECTS
--   children that wait are removed with all below them; those that run, or have ended, stay. The
--   root goes last, unless somebody has started it

local flows = unpack(KEYS)
local now, size = unpack(ARGV)

--- @include "split_key"
--- @include "remove_tree"

local root = redis.call("ZRANGEBYSCORE", flows, "-inf", now, "LIMIT", 0, 1)[1]
if not root then
  return { "", 1 }
end
local base, id = split_key(root)
local dependencies, hold = root .. ":dependencies", root .. ":tb:flow"
redis.call("SADD", dependencies, hold) -- it is not to run because its children go
local pending = redis.call("SRANDMEMBER", dependencies, size)
for i = 1, #pending do
  local child = pending[i]
  if child ~= hold then
    local child_base, child_id = split_key(child)
    if redis.call("EXISTS", child .. ":lock") == 0
      and not redis.call("ZSCORE", child_base .. "failed", child_id) then
      remove_tree(child_base, child_id, "idle", {})
    end
    redis.call("SREM", dependencies, child)
  end
end
if redis.call("SCARD", dependencies) > 1 then
  return { root, 0 }
end
if redis.call("ZSCORE", base .. "waiting-children", id) then
  remove_tree(base, id, "no", {})
end
redis.call("SREM", dependencies, hold)
redis.call("ZREM", flows, root)
return { root, 1 }
