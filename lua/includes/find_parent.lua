-- find_parent(key, parent_key) -> {base, id, and the policy flags}: where the parent of the child
-- `key` is, by the child's own word; without it the parent's key is cut at its last colon.
local function find_parent(key, parent_key)
  local stored = redis.call("HGET", key, "parent")
  if stored then
    local readable, parent = pcall(cjson.decode, stored)
    if readable and type(parent) == "table" and type(parent.queueKey) == "string"
      and (type(parent.id) == "string" or type(parent.id) == "number") then
      return { base = parent.queueKey .. ":", id = tostring(parent.id), fpof = parent.fpof == true,
        cpof = parent.cpof == true, idof = parent.idof == true, rdof = parent.rdof == true }
    end
  end
  local base, id = string.match(parent_key, "^(.*:)([^:]*)$")
  return { base = base or "", id = id or "" }
end
