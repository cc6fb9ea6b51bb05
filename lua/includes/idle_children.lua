--- @include "is_child"
--- @include "split_key"

-- idle_children(key) -> the keys of a job's pending children that name it as their parent, have not
-- failed and are not locked.
local function idle_children(key)
  local pending, idle = redis.pcall("SMEMBERS", key .. ":dependencies"), {}
  for i = 1, #pending do
    local base, id = split_key(pending[i])
    if is_child(pending[i], key)
      and redis.call("EXISTS", pending[i] .. ":lock") == 0
      and not redis.call("ZSCORE", base .. "failed", id) then
      idle[#idle + 1] = pending[i]
    end
  end
  return idle
end
