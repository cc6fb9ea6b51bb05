-- is_child(key, parent_key) -> whether the job `key` itself names that parent. Anyone who can write
-- to a parent's queue can list any key as its child, so follow only keys that point back. False for
-- a key of another type, in another slot, or without access for this user.
local function is_child(key, parent_key)
  local reply = redis.pcall("HGET", key, "parentKey")
  if type(reply) == "table" and string.find(reply.err, "run th", 1, true) then
    error(reply.err, 0) -- this user may not run the command
  end
  return reply == parent_key
end
