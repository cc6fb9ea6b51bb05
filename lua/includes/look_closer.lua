-- look_closer(key, is_child) -> whether a job with more fields than a new one can finish with the
-- plain ones, and its parent's key or false. `is_child` means that it has as many fields as a new
-- child. Any other job must have no previous attempt, and be neither deduplicated nor cancelled.
local function look_closer(key, is_child)
  local parent_key = is_child and redis.pcall("HGET", key, "parentKey")
  if type(parent_key) == "string" then
    return true, parent_key
  end
  local fields = redis.pcall("HMGET", key, "ats", "atm", "deid", "defa", "parentKey")
  return fields[1] and not (fields[2] or fields[3] or fields[4]), fields[5]
end
