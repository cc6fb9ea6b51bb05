--- @include "names_own_key"
--- @include "split_key"
--- @include "children_of"
--- @include "idle_children"
--- @include "pull_job"
--- @include "leave_parent"
--- @include "release_deduplication"
--- @include "delete_job"
--- @include "event_limit"

-- remove_tree(base, id, children, seen): remove a job and its children ("all", "idle" or "no"), in
-- any queue. As in BullMQ, it first leaves its parent, then its children are removed, then the job.
-- `seen` is the set of keys being removed.
local function remove_tree(base, id, children, seen)
  local key = base .. id
  local fields = redis.pcall("HMGET", key, "parentKey", "deid")
  local is_job = not fields.err and not names_own_key(id)
  seen[key] = true
  if is_job then
    leave_parent(base, key, fields[1], false)
    local below = children == "all" and children_of(key)
      or children == "idle" and idle_children(key) or {}
    for i = 1, #below do
      if not seen[below[i]] then
        local child_base, child_id = split_key(below[i])
        remove_tree(child_base, child_id, children, seen)
      end
    end
  end
  local prev = pull_job(base, id)
  if not is_job then
    return
  end
  release_deduplication(base, id, fields[2])
  if delete_job(key) > 0 then
    redis.call("XADD", base .. "events", "MAXLEN", "~", event_limit(base .. "meta"), "*",
      "event", "removed", "jobId", id, "prev", prev)
  end
end
