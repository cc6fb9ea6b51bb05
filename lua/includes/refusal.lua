-- refusal(reply) -> what Redis said, if this reply to a redis.pcall is an error; else nil or false.
local function refusal(reply)
  return type(reply) == "table" and reply.err
end
