-- awaits(parent_key, key) -> whether the parent waits for this child. False if the set has another
-- type, is in another Cluster slot, or this user cannot access it.
local function awaits(parent_key, key)
  local reply = redis.pcall("SISMEMBER", parent_key .. ":dependencies", key)
  if type(reply) == "table" and string.find(reply.err, "run th", 1, true) then
    error(reply.err, 0) -- this user may not run the command
  end
  return reply == 1
end
