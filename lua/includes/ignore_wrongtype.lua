-- ignore_wrongtype(reply) -> the redis.pcall reply, or false if the key has the wrong type. Any
-- other error, such as missing permissions, is raised.
local function ignore_wrongtype(reply)
  if type(reply) ~= "table" or not reply.err then
    return reply
  end
  if string.find(reply.err, "WRONGTYPE", 1, true) then
    return false
  end
  error(reply.err, 0)
end
