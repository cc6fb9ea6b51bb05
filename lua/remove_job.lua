-- remove_job: remove a job from any state, unless it is locked.
--
-- KEYS
--   job        hash   the job
-- ARGV
--   prefix            queue key prefix
--   job_id
--   children          "1" to remove its children as well, in any queue
--   only_in           sorted set that must contain it, or "" for any place
-- RETURNS
--   1, or 0 if the job or one of its pending children is locked, -3 if it is not in `only_in`, -8
--   if it is the next run of a scheduler
-- EFFECTS
--   all keys of the job are deleted, and its deduplication id is freed. Its parent is released if
--   it waited for nothing else. An id without a job is removed from its list or set

local job = unpack(KEYS)
local prefix, job_id, children, only_in = unpack(ARGV)

--- @include "current_iteration"
--- @include "tree_locked"
--- @include "remove_tree"

if only_in ~= "" and not redis.call("ZSCORE", only_in, job_id) then
  return -3
end
local scheduler = redis.pcall("HGET", job, "rjk")
if type(scheduler) == "string" and current_iteration(prefix, job_id, scheduler) then
  return -8
end
if tree_locked(job, children == "1", {}) then
  return 0
end
remove_tree(prefix, job_id, children == "1" and "all" or "no", {})
return 1
