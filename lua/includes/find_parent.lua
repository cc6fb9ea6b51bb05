-- is_waiting_for(parent_key, key) -> whether the parent waits for this child. False if the set has
-- another type, is in another Cluster slot, or this user cannot access it.
local function is_waiting_for(parent_key, key)
  local reply = redis.pcall("SISMEMBER", parent_key .. ":dependencies", key)
  if type(reply) == "table" and string.find(reply.err, "run th", 1, true) then
    error(reply.err, 0) -- this user may not run the command
  end
  return reply == 1
end

-- find_parent(key, parent_key) -> {base, id, policy flags} of the parent of child `key`. Ids may
-- contain colons, so the child's field `parent` shows where to split the parent's key. It cannot
-- name another job. Without it, the key is split at its last colon.
local function find_parent(key, parent_key)
  local found = {}
  local readable, parent = pcall(cjson.decode, redis.call("HGET", key, "parent") or "")
  if readable and type(parent) == "table" then
    found.fpof, found.cpof = parent.fpof == true, parent.cpof == true
    found.idof, found.rdof = parent.idof == true, parent.rdof == true
    local id = type(parent.id) == "number" and tostring(parent.id) or parent.id
    if type(parent.queueKey) == "string" and type(id) == "string"
      and parent.queueKey .. ":" .. id == parent_key then
      found.base, found.id = parent.queueKey .. ":", id
      return found
    end
  end
  local base, id = string.match(parent_key, "^(.*:)([^:]*)$")
  found.base, found.id = base or "", id or ""
  return found
end
