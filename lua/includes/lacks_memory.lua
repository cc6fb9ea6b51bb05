-- lacks_memory(set) -> whether Redis is out of memory: ask it for a write that does nothing.
-- Whatever else it would refuse a write for is raised. It must be the first write: from its second
-- one on, Redis lets a script fill the memory.
local function lacks_memory(set)
  local reply = redis.pcall("ZADD", set, "XX", 0, "")
  if type(reply) ~= "table" then
    return false
  end
  if not string.find(reply.err, "OOM", 1, true) then
    redis.call("ZADD", set, "XX", 0, "")
  end
  return true
end
