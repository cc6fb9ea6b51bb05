-- remove_child_dependency: cut a job off its parent; both stay.
--
-- KEYS
--   job        hash   the child
-- ARGV
--   prefix            start of every key of this queue
-- RETURNS
--   1; 0 if the parent does not wait for it; -1 if there is no such job, -5 if it has no parent
-- EFFECTS
--   the parent does not wait for it any more, and is let go if it waited for it alone

local job = unpack(KEYS)
local prefix = unpack(ARGV)

--- @include "is_hash"
--- @include "leave_parent"

if not is_hash(job) then
  return -1
end
local parent_key = redis.call("HGET", job, "parentKey")
if not parent_key or not is_hash(parent_key) then
  return -5
end
if not leave_parent(prefix, job, parent_key, false) then
  return 0
end
redis.call("HDEL", job, "parentKey", "parent")
return 1
