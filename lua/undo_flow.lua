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
--   root goes last, unless somebody has started it. What was there before the tree stays: jobs that
--   it has adopted, and the children for which they waited then. A job that waited, and waits for
--   none now, is released

local flows = unpack(KEYS)
local now, size = unpack(ARGV)

--- @include "split_key"
--- @include "remove_tree"
--- @include "release_parent"

local root = redis.call("ZRANGEBYSCORE", flows, "-inf", now, "LIMIT", 0, 1)[1]
if not root then
  return { "", 1 }
end

-- Of most trees nothing was there before. See add_flow for the keys.
local old, growing, left = root .. ":tb:old", root .. ":tb:growing", root .. ":tb:left"
local is_mixed = redis.call("EXISTS", old) == 1
local parent = is_mixed and redis.call("SRANDMEMBER", growing) or root
local base, id = split_key(parent)
local dependencies, hold = parent .. ":dependencies", parent .. ":tb:flow"
local is_old = is_mixed and redis.call("SISMEMBER", old, parent) == 1
redis.call("SADD", dependencies, hold) -- it is not to run because its children go
if is_mixed and redis.call("EXISTS", left) == 0 then
  redis.call("SUNIONSTORE", left, dependencies)
end

local from = is_mixed and left or dependencies
local pending = redis.call("SRANDMEMBER", from, size)
local spared = is_mixed and redis.call("SMISMEMBER", old, unpack(pending)) or {}
local seen = setmetatable({}, { __index = function(_, key)
  return is_mixed and redis.call("SISMEMBER", old, key) == 1
end })
for i = 1, #pending do
  local child = pending[i]
  if child ~= hold and spared[i] ~= 1 then
    local child_base, child_id = split_key(child)
    if redis.call("EXISTS", child .. ":lock") == 0
      and not redis.call("ZSCORE", child_base .. "failed", child_id) then
      remove_tree(child_base, child_id, "idle", seen)
    end
    redis.call("SREM", dependencies, child)
  end
end
if is_mixed then
  redis.call("SREM", left, unpack(pending))
end
if redis.call("SCARD", from) > (is_mixed and 0 or 1) then
  return { root, 0 }
end

local waits = redis.call("ZSCORE", base .. "waiting-children", id)
if waits and not is_old then
  remove_tree(base, id, "no", {})
elseif waits and redis.call("SCARD", dependencies) == 1 then
  release_parent(parent, base, id, tonumber(now))
end
redis.call("SREM", dependencies, hold)
if parent ~= root then
  redis.call("SREM", growing, parent)
  return { root, 0 }
end
redis.call("DEL", old, growing)
redis.call("ZREM", flows, root)
return { root, 1 }
