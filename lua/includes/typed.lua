-- typed(reply) -> the reply to a redis.pcall, or false if its key is of another type than the
-- command wants; any other error, such as a lack of rights, is raised.
local function typed(reply)
  if type(reply) ~= "table" or not reply.err then
    return reply
  end
  if string.find(reply.err, "WRONGTYPE", 1, true) then
    return false
  end
  error(reply.err, 0)
end
