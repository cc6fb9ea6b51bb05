-- look_closer(key, is_child) -> whether a job that has other fields than a new one can end with the
-- plain ones, and the key of its parent, or false. `is_child`: it has as many as a child that was
-- new. Any other must have no attempt behind it, and be neither deduplicated nor cancelled.
local function look_closer(key, is_child)
  local parent_key = is_child and redis.pcall("HGET", key, "parentKey")
  if type(parent_key) == "string" then
    return true, parent_key
  end
  local fields = redis.pcall("HMGET", key, "ats", "atm", "deid", "defa", "parentKey")
  return fields[1] and not (fields[2] or fields[3] or fields[4]), fields[5]
end
