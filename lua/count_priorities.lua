-- count_priorities: count the waiting jobs of each given priority.
--
-- KEYS
--   wait          list   waiting jobs without a priority
--   paused        list   waiting jobs while the queue is paused
--   prioritized   zset   waiting jobs with a priority
-- ARGV
--   priorities           msgpack array
-- RETURNS
--   one number per priority

local wait, paused, prioritized = unpack(KEYS)
local priorities = unpack(ARGV)

local counts = {}
for i, priority in ipairs(cmsgpack.unpack(priorities)) do
  if priority == 0 then
    counts[i] = redis.call("LLEN", wait) + redis.call("LLEN", paused)
  else
    local first = priority * 0x100000000
    counts[i] = redis.call("ZCOUNT", prioritized, first, first + 0xffffffff)
  end
end
return counts
