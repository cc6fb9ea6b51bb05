--- @include "release_parent"

-- attach_to_parent(prefix, id, parent, completed, now, waits) -> 1, or -7 if the job has another
-- parent that still exists. Make an existing job a child of `parent` ({key, id, queue key, stored
-- JSON}). A parent with nothing left to wait for is released, unless `waits`: more children will
-- come.
local function attach_to_parent(prefix, id, parent, completed, now, waits)
  local key, parent_key = prefix .. id, parent[1]
  local old = redis.call("HGET", key, "parentKey")
  if old and old ~= parent_key and redis.call("EXISTS", old) == 1 then
    return -7
  end
  local dependencies = parent_key .. ":dependencies"
  if redis.call("ZSCORE", completed, id) then
    local value = redis.call("HGET", key, "returnvalue")
    redis.call("HSET", parent_key .. ":processed", key, value or "null")
    local base = parent[3] .. ":"
    if not waits and redis.call("SCARD", dependencies) == 0
      and redis.call("ZSCORE", base .. "waiting-children", parent[2]) then
      release_parent(parent_key, base, parent[2], now)
    end
  else
    redis.call("SADD", dependencies, key)
  end
  redis.call("HSET", key, "parentKey", parent_key, "parent", parent[4])
  return 1
end
