--- @include "is_reserved_id"
--- @include "split_key"
--- @include "idle_children"
--- @include "detach_from_parent"
--- @include "release_deduplication"
--- @include "delete_job"
--- @include "event_limit"
--- @include "is_child"

-- remove_from_state(base, id) -> the name of the set or list that the job was removed from, or
-- "unknown".
local function remove_from_state(base, id)
  local sets = { "completed", "waiting-children", "delayed", "failed", "prioritized" }
  for i = 1, #sets do
    if redis.call("ZREM", base .. sets[i], id) == 1 then
      return sets[i]
    end
  end
  local lists = { "wait", "paused", "active" }
  for i = 1, #lists do
    if redis.call("LREM", base .. lists[i], -1, id) == 1 then
      return lists[i]
    end
  end
  return "unknown"
end

-- children_of(key) -> the keys of all children that name this job as their parent, pending ones
-- last.
local function children_of(key)
  local children = {}
  local function gather(found)
    for i = 1, found.err and 0 or #found do
      if is_child(found[i], key) then
        children[#children + 1] = found[i]
      end
    end
  end
  gather(redis.pcall("HKEYS", key .. ":processed"))
  gather(redis.pcall("HKEYS", key .. ":failed"))
  gather(redis.pcall("ZRANGE", key .. ":unsuccessful", 0, -1))
  gather(redis.pcall("SMEMBERS", key .. ":dependencies"))
  return children
end

-- remove_tree(base, id, children, seen): remove a job and its children ("all", "idle" or "no"), in
-- any queue. As in BullMQ, it first leaves its parent, then its children are removed, then the job.
-- `seen` is the set of keys being removed.
local function remove_tree(base, id, children, seen)
  local key = base .. id
  local fields = redis.pcall("HMGET", key, "parentKey", "deid")
  local is_job = not fields.err and not is_reserved_id(id)
  seen[key] = true
  if is_job then
    detach_from_parent(base, key, fields[1], false)
    local below = children == "all" and children_of(key)
      or children == "idle" and idle_children(key) or {}
    for i = 1, #below do
      if not seen[below[i]] then
        local child_base, child_id = split_key(below[i])
        remove_tree(child_base, child_id, children, seen)
      end
    end
  end
  local prev = remove_from_state(base, id)
  if not is_job then
    return
  end
  release_deduplication(base, id, fields[2])
  if delete_job(key) > 0 then
    redis.call("XADD", base .. "events", "MAXLEN", "~", event_limit(base .. "meta"), "*",
      "event", "removed", "jobId", id, "prev", prev)
  end
end
