--- @include "append_keys"

-- trim_finished(prefix, finished, keep, detach_from_parent, now, most) -> number removed: remove up
-- to `most` jobs from the set `finished` that exceed `keep` ({count, age in s, limit}, each -1 for
-- no bound). `detach_from_parent` is that function, or nil if no parent waits for jobs of this set.
local function trim_finished(prefix, finished, keep, detach_from_parent, now, most)
  local count, age, limit = unpack(keep)
  local removed = 0
  local function remove(ids)
    if #ids == 0 then
      return
    end
    local keys = {}
    for i = 1, #ids do
      local key = prefix .. ids[i]
      if detach_from_parent then
        local parent_key = redis.pcall("HGET", key, "parentKey")
        if type(parent_key) == "table" then
          if not string.find(parent_key.err, "WRONGTYPE", 1, true) then
            error(parent_key.err, 0)
          end
          parent_key = false -- not a job, so it has no parent
        end
        detach_from_parent(prefix, key, parent_key, false)
      end
      append_keys(keys, key)
    end
    redis.call("DEL", unpack(keys))
    redis.call("ZREM", finished, unpack(ids))
    removed = removed + #ids
  end
  if age >= 0 then
    local old = limit > 0 and math.min(limit, most) or most
    remove(redis.call("ZREVRANGEBYSCORE", finished, now - age * 1000, 0, "LIMIT", 0, old))
  end
  if count > 0 then
    local excess = math.min(redis.call("ZCARD", finished) - count, most - removed)
    if excess > 0 then
      remove(redis.call("ZRANGE", finished, 0, excess - 1))
    end
  end
  return removed
end
