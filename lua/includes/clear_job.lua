--- @include "is_reserved_id"
--- @include "is_next_run"
--- @include "detach_from_parent"
--- @include "release_deduplication"
--- @include "append_keys"

-- clear_job(base, id, instants, cutoff, force, keys) -> whether the id may leave its list or set.
-- If it is a job, its keys are appended to `keys` for deletion. A job stays if the first field of
-- `instants` that it has is later than `cutoff`, or, unless `force`, if it is the next run of a
-- scheduler.
local function clear_job(base, id, instants, cutoff, force, keys)
  local key = base .. id
  if is_reserved_id(id) then
    return true
  end
  local fields = redis.pcall("HMGET", key, "parentKey", "deid", "rjk", unpack(instants))
  if fields.err or not fields[3] and string.find(id, "^repeat:") then -- or a scheduler itself
    return true
  end
  for i = 4, #fields do
    if fields[i] then
      if (tonumber(fields[i]) or 0) > cutoff then
        return false
      end
      break
    end
  end
  if not force and is_next_run(base, id, fields[3]) then
    return false
  end
  detach_from_parent(base, key, fields[1], true)
  release_deduplication(base, id, fields[2])
  append_keys(keys, key)
  return true
end
