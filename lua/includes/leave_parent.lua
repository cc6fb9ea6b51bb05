--- @include "is_hash"
--- @include "find_parent"
--- @include "let_parent_go"
--- @include "release_deduplication"
--- @include "delete_job"

-- leave_parent(base, key, parent_key, hard) -> whether a parent (false: none) waited for this job:
-- it does no longer. If it waited for nothing else it is let go; `hard`: it is removed, if it is in
-- this queue. What is no parent (another type, another slot of a Cluster) is left alone.
local function leave_parent(base, key, parent_key, hard)
  if not parent_key or redis.pcall("SREM", parent_key .. ":dependencies", key) ~= 1 then
    return false
  end
  if redis.call("EXISTS", parent_key .. ":dependencies") == 1 then
    return true
  end
  local parent = find_parent(key, parent_key)
  if redis.call("ZREM", parent.base .. "waiting-children", parent.id) == 0
    or not is_hash(parent_key) then
    return true
  end
  if not hard or parent.base ~= base then
    let_parent_go(parent.base, parent.id, hard)
    return true
  end
  local fields = redis.call("HMGET", parent_key, "parentKey", "deid")
  leave_parent(base, parent_key, fields[1], hard)
  release_deduplication(base, parent.id, fields[2])
  delete_job(parent_key)
  return true
end
