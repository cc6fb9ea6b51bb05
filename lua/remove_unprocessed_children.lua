-- remove_unprocessed_children: remove the pending children of a job that no worker holds.
--
-- KEYS
--   job   hash   the job
-- RETURNS
--   how many were removed, their own children not counted
-- EFFECTS
--   children that have failed stay, too. The pending children of those that go, go with them, by
--   the same rule. The job is let go if it waits for nothing else

local job = unpack(KEYS)

--- @include "split_key"
--- @include "idle_children"
--- @include "remove_tree"

local children = idle_children(job)
for i = 1, #children do
  local base, id = split_key(children[i])
  remove_tree(base, id, "idle", {})
end
return #children
