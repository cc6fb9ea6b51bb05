--- @include "awaits"
--- @include "note_drop"
--- @include "is_hash"
--- @include "find_parent"
--- @include "let_parent_go"
--- @include "release_deduplication"
--- @include "delete_job"

-- leave_parent(base, key, parent_key, hard) -> whether the parent waited for this job, which it no
-- longer does. `parent_key` may be false. If it waited for nothing else, it is released, or with
-- `hard` removed if it is in this queue. A key that is not a parent (another type, another Cluster
-- slot) is left alone.
local function leave_parent(base, key, parent_key, hard)
  if not parent_key or not awaits(parent_key, key) then
    return false
  end
  local dependencies = parent_key .. ":dependencies"
  if redis.call("SCARD", dependencies) == 1 then
    local parent = find_parent(key, parent_key)
    local waiting_children = parent.base .. "waiting-children"
    if redis.call("ZSCORE", waiting_children, parent.id) then
      if not is_hash(parent_key) then
        redis.call("ZREM", waiting_children, parent.id)
      elseif not hard or parent.base ~= base then
        let_parent_go(parent.base, parent.id, hard)
      else
        local fields = redis.call("HMGET", parent_key, "parentKey", "deid")
        -- First, because a job may be its own grandparent.
        redis.call("SREM", dependencies, key)
        leave_parent(base, parent_key, fields[1], hard)
        release_deduplication(base, parent.id, fields[2])
        redis.call("ZREM", waiting_children, parent.id)
        delete_job(parent_key)
      end
    end
  end
  note_drop(parent_key)
  redis.call("SREM", dependencies, key)
  return true
end
