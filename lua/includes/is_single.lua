-- is_single(key) -> whether a job has no parent, no deduplication and no attempt behind it: its end
-- concerns nobody else.
local function is_single(key)
  local fields = redis.pcall("HMGET", key, "ats", "atm", "parentKey", "deid")
  return fields[1] and not (fields[2] or fields[3] or fields[4])
end
