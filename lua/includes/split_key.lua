-- split_key(key) -> the queue's key prefix, and the job's id.
local function split_key(key)
  local base, id = string.match(key, "^(.*:)([^:]*)$")
  return base or "", id or key
end
