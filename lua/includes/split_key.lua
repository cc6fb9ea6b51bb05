-- split_key(key) -> the start of all keys of the job's queue, and the job's id.
local function split_key(key)
  local base, id = string.match(key, "^(.*:)([^:]*)$")
  return base or "", id or key
end
