-- refusal(reply) -> Redis's message if this redis.pcall reply is an error, else nil or false.
local function refusal(reply)
  return type(reply) == "table" and reply.err
end
