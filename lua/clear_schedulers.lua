-- clear_schedulers: remove job schedulers, a chunk per call; their jobs stay.
--
-- KEYS
--   schedulers   zset   job schedulers
-- ARGV
--   prefix              queue key prefix
--   size                number to remove
-- RETURNS
--   number of schedulers left

local schedulers = unpack(KEYS)
local prefix, size = unpack(ARGV)

local ids = redis.call("ZRANGE", schedulers, 0, size - 1)
for i = 1, #ids do
  redis.call("DEL", prefix .. "repeat:" .. ids[i])
end
if #ids > 0 then
  redis.call("ZREM", schedulers, unpack(ids))
end
return redis.call("ZCARD", schedulers)
