-- undo_flow: remove a tree of jobs that its producer never completed, a chunk per call.
--
-- KEYS
--   flows   zset   roots of incomplete trees, by the ms when to give up
-- ARGV
--   now            ms
--   size           number of children to check
-- RETURNS
--   key of the root, or "" if no tree is overdue; then 1 if the tree is gone, 0 if there is more to
--   do, -1 if it cannot be undone. A root of another queue is then forgotten. A tree with a key of
--   another type or out of reach is retried in an hour
-- EFFECTS
--   waiting children are removed with everything below them; running and finished ones stay. The
--   root is removed last, unless it has started. A child that names another parent, or that this
--   user cannot access, is skipped. Jobs that existed before the tree stay, with the children that
--   they already waited for. Such a job is released if it has nothing left to wait for

local flows = unpack(KEYS)
local now, size = unpack(ARGV)

--- @include "is_child"
--- @include "is_denied"
--- @include "release_parent"
--- @include "remove_tree"
--- @include "split_key"

local RETRY_DELAY, DEEPEST = 3600000, 1000

local root = redis.call("ZRANGEBYSCORE", flows, "-inf", now, "LIMIT", 0, 1)[1]
if not root then
  return { "", 1 }
end
local own_base = string.match(flows, "^(.*:)tb:flows$")
if string.sub(root, 1, #own_base) ~= own_base then
  redis.call("ZREM", flows, root)
  return { root, -1 }
end
redis.pcall("HDEL", root, "tbfl") -- from now on, refuse a slow producer

local function split_own_key(key)
  if string.sub(key, 1, #own_base) == own_base then -- an id may contain colons
    return own_base, string.sub(key, #own_base + 1)
  end
  return split_key(key)
end

-- Return whether an error is only about a key that the tree names (wrong type, another slot, no
-- access), and not about Redis or a command.
local function is_local(problem)
  return string.find(problem, "WRONGTYPE", 1, true)
    or string.find(problem, "non local key", 1, true)
    or is_denied(problem) and not string.find(problem, "run th", 1, true)
      and not string.find(problem, "Unknown", 1, true)
end

-- Return whether a job belongs to the tree, by following parent keys to the root.
local function is_below_root(key)
  for _ = 1, DEEPEST do
    if key == root then
      return true
    end
    key = redis.pcall("HGET", key, "parentKey")
    if type(key) == "table" and not is_local(key.err) then
      error(key.err, 0)
    elseif type(key) ~= "string" then
      return false
    end
  end
  return false
end

-- Call a function -> its result, or nil after an error that is_local accepts. Others are raised.
local function try(action, ...)
  local is_done, result = pcall(action, ...)
  if is_done then
    return result
  end
  result = type(result) == "table" and result.err or tostring(result)
  if not is_local(result) then
    error(result, 0)
  end
  return nil
end

-- Most trees contain no older jobs. See add_flow for the keys.
local existing, growing, left = root .. ":tb:old", root .. ":tb:growing", root .. ":tb:left"
local is_mixed = redis.call("EXISTS", existing) == 1
local seen = setmetatable({}, { __index = function(_, key)
  return is_mixed and redis.call("SISMEMBER", existing, key) == 1
end })

local function remove_child(child, parent)
  local base, id = split_own_key(child)
  if is_child(child, parent) and redis.call("EXISTS", child .. ":lock") == 0
    and not redis.call("ZSCORE", base .. "failed", id) then
    remove_tree(base, id, "idle", seen)
  end
end

-- Undo a chunk -> whether the whole tree is gone.
local function undo()
  local parent = is_mixed and redis.call("SRANDMEMBER", growing) or root
  if not is_below_root(parent) then
    redis.call("SREM", growing, parent)
    return false
  end
  local base, id = split_own_key(parent)
  local dependencies, hold = parent .. ":dependencies", parent .. ":tb:flow"
  local is_existing = is_mixed and redis.call("SISMEMBER", existing, parent) == 1
  -- Removing its children must not release it.
  redis.call("SADD", dependencies, hold)
  if is_mixed and redis.call("EXISTS", left) == 0 then
    redis.call("SUNIONSTORE", left, dependencies)
  end

  local from = is_mixed and left or dependencies
  local pending = redis.call("SRANDMEMBER", from, size)
  local spared = is_mixed and redis.call("SMISMEMBER", existing, unpack(pending)) or {}
  for i = 1, #pending do
    local child = pending[i]
    if child ~= hold and spared[i] ~= 1 then
      try(remove_child, child, parent)
      redis.call("SREM", dependencies, child)
    end
  end
  if is_mixed then
    redis.call("SREM", left, unpack(pending))
  end
  if redis.call("SCARD", from) > (is_mixed and 0 or 1) then
    return false
  end

  local waits = redis.call("ZSCORE", base .. "waiting-children", id)
  if waits and not is_existing then
    remove_tree(base, id, "no", {})
  elseif waits and redis.call("SCARD", dependencies) == 1 then
    release_parent(parent, base, id, tonumber(now))
  end
  redis.call("SREM", dependencies, hold)
  if parent ~= root then
    redis.call("SREM", growing, parent)
    return false
  end
  redis.call("DEL", existing, growing)
  redis.call("ZREM", flows, root)
  return true
end

local is_gone = try(undo)
if is_gone == nil then
  redis.call("ZADD", flows, "XX", now + RETRY_DELAY, root)
  return { root, -1 }
end
return { root, is_gone and 1 or 0 }
