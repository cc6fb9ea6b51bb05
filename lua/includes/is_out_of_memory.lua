-- is_out_of_memory(set) -> whether Redis is out of memory, by a write that does nothing. Any other
-- refusal is raised. This must be the first write: Redis does not check memory for later writes of
-- a script.
local function is_out_of_memory(set)
  local reply = redis.pcall("ZADD", set, "XX", 0, "")
  if type(reply) ~= "table" then
    return false
  end
  if not string.find(reply.err, "OOM", 1, true) then
    redis.call("ZADD", set, "XX", 0, "")
  end
  return true
end
