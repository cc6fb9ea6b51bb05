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
