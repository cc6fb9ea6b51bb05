-- remove_unprocessed_children: remove a job's pending children that are not locked.
--
-- KEYS
--   job   hash   the job
-- RETURNS
--   number removed, not counting their own children
-- EFFECTS
--   failed children also stay. The pending children of a removed child are removed by the same
--   rule. The job is released if it waits for nothing else

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
