--- @include "is_child"

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
