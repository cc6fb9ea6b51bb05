-- awaits(parent_key, key) -> whether the parent waits for this child; not if it is of another type,
-- or out of reach: in another slot of a Cluster, or where this user has no access.
local function awaits(parent_key, key)
  local reply = redis.pcall("SISMEMBER", parent_key .. ":dependencies", key)
  if type(reply) == "table" and string.find(reply.err, "run th", 1, true) then
    error(reply.err, 0) -- the user may not run this command
  end
  return reply == 1
end
