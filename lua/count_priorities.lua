-- count_priorities: count the jobs that wait for their turn with each of some priorities.
--
-- KEYS
--   wait          list   jobs without a priority
--   paused        list   the same while the queue is paused
--   prioritized   zset   jobs with one
-- ARGV
--   priorities           msgpack array
-- RETURNS
--   one number for each priority

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
