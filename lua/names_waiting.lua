-- names_waiting: look at some of the jobs that a worker will take, and give their names.
--
-- KEYS
--   wait          list   jobs that may run, taken from the tail
--   paused        list   the same while the queue is paused
--   prioritized   zset   jobs that may run, by priority
--   delayed       zset   jobs that may run later
-- ARGV
--   prefix               start of every key of this queue
--   most                 how many jobs of each are looked at: those that come next
-- RETURNS
--   the names, each once

local wait, paused, prioritized, delayed = unpack(KEYS)
local prefix, most = unpack(ARGV)

local names, seen = {}, {}
for _, ids in ipairs({
  redis.call("LRANGE", wait, -most, -1),
  redis.call("LRANGE", paused, -most, -1),
  redis.call("ZRANGE", prioritized, 0, most - 1),
  redis.call("ZRANGE", delayed, 0, most - 1),
}) do
  for i = 1, #ids do
    local name = redis.pcall("HGET", prefix .. ids[i], "name")
    if type(name) == "string" and not seen[name] then
      seen[name] = true
      names[#names + 1] = name
    end
  end
end
return names
