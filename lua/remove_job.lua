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

--- @include "is_next_run"
--- @include "remove_tree"
--- @include "is_child"

-- tree_locked(key, with_children, seen) -> whether the job, or a pending child at any depth, is
-- locked. `seen` is the set of keys already checked.
local function tree_locked(key, with_children, seen)
  if redis.call("EXISTS", key .. ":lock") == 1 then
    return true
  end
  seen[key] = true
  local pending = with_children and redis.pcall("SMEMBERS", key .. ":dependencies") or {}
  for i = 1, #pending do
    if not seen[pending[i]] and is_child(pending[i], key)
      and tree_locked(pending[i], with_children, seen) then
      return true
    end
  end
  return false
end

if only_in ~= "" and not redis.call("ZSCORE", only_in, job_id) then
  return -3
end
local scheduler = redis.pcall("HGET", job, "rjk")
if type(scheduler) == "string" and is_next_run(prefix, job_id, scheduler) then
  return -8
end
if tree_locked(job, children == "1", {}) then
  return 0
end
remove_tree(prefix, job_id, children == "1" and "all" or "no", {})
return 1
