-- names_waiting: return the names of some jobs that a worker will fetch next.
--
-- KEYS
--   wait          list   waiting jobs, taken from the tail
--   paused        list   waiting jobs while the queue is paused
--   prioritized   zset   waiting jobs with a priority
--   delayed       zset   delayed jobs, by due time
-- ARGV
--   prefix               queue key prefix
--   most                 how many of the next jobs to check in each list or set
-- RETURNS
--   unique names

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
