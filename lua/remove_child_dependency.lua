-- remove_child_dependency: detach a job from its parent; both stay.
--
-- KEYS
--   job        hash   the child
-- ARGV
--   prefix            queue key prefix
-- RETURNS
--   1, or 0 if the parent does not wait for it, -1 if there is no such job, -5 if it has no parent
-- EFFECTS
--   the parent no longer waits for it, and is released if it waited for nothing else

local job = unpack(KEYS)
local prefix = unpack(ARGV)

--- @include "is_hash"
--- @include "detach_from_parent"

if not is_hash(job) then
  return -1
end
local parent_key = redis.call("HGET", job, "parentKey")
if not parent_key or not is_hash(parent_key) then
  return -5
end
if not detach_from_parent(prefix, job, parent_key, false) then
  return 0
end
redis.call("HDEL", job, "parentKey", "parent")
return 1
