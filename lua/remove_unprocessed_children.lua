-- remove_unprocessed_children: remove the pending children of a job that no worker holds.
--
-- KEYS
--   dependencies   set   keys of the job's pending children, in whatever queue
-- RETURNS
--   how many were removed
-- EFFECTS
--   children that have failed stay, too. Their own children go with them, and the job is let go if
--   it waited for them alone

local dependencies = unpack(KEYS)

--- @include "split_key"
--- @include "tree_locked"
--- @include "remove_tree"

local removed = 0
local children = redis.call("SMEMBERS", dependencies)
for i = 1, #children do
  local base, id = split_key(children[i])
  if not redis.call("ZSCORE", base .. "failed", id) and not tree_locked(children[i], true, {}) then
    remove_tree(base, id, true, {})
    removed = removed + 1
  end
end
return removed
