-- peek_logs: read the newest lines of a job's log, as many as fit, each cut to `longest`.
--
-- KEYS
--   logs       list   log lines, oldest first
-- ARGV
--   most              maximum number of lines
--   longest           bytes to keep of each line
--   room              stop reading lines after this many bytes
-- RETURNS
--   count             number of all lines
--   lines             line, size, ... newest first

local logs = unpack(KEYS)
local most, longest, room = unpack(ARGV)

most, longest, room = tonumber(most), tonumber(longest), tonumber(room)
local count, lines = redis.call("LLEN", logs), {}
for place = 1, math.min(most, count) do
  local line = redis.call("LRANGE", logs, -place, -place)[1]
  lines[#lines + 1] = string.sub(line, 1, longest)
  lines[#lines + 1] = #line
  room = room - #line
  if room <= 0 then
    break
  end
end
return { count, lines }
