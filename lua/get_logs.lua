-- get_logs: read lines of a job's log.
--
-- KEYS
--   logs           list   log lines, oldest first
-- ARGV
--   start                 index of the first line
--   stop                  index of the last; negative counts from the end
--   oldest_first          "1", or "0" for newest first
-- RETURNS
--   lines                 in the requested order
--   count                 number of all lines

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
