-- remove_job: remove a job, wherever it is, unless a worker holds it.
--
-- KEYS
--   job        hash   the job
-- ARGV
--   prefix            start of every key of this queue
--   job_id
--   children          "1": its children go too, in whatever queue they are
--   only_in           the sorted set in which it has to be; "": anywhere
-- RETURNS
--   1; 0 if a worker holds it or a pending child of it; -3 if it is not where it has to be; -8 if
--   it is the next run of a scheduler
-- EFFECTS
--   the job is deleted with all it has; its parent is let go if it waited for it alone; its
--   deduplication id is free. An id that is left over in a list or set is removed, too

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
