-- get_logs: read lines of a job's log.
--
-- KEYS
--   logs           list   its lines, oldest first
-- ARGV
--   start                 place of the first line
--   stop                  and of the last; a negative one counts from the end
--   oldest_first          "1", or "0": the newest first
-- RETURNS
--   lines                 in order
--   count                 of all lines

local logs = unpack(KEYS)
local start, stop, oldest_first = unpack(ARGV)

local count = redis.call("LLEN", logs)
if oldest_first == "1" then
  return { redis.call("LRANGE", logs, start, stop), count }
end
local found = redis.call("LRANGE", logs, -stop - 1, -start - 1)
local lines = {}
for i = #found, 1, -1 do
  lines[#lines + 1] = found[i]
end
return { lines, count }
