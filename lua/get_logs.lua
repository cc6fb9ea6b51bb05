-- get_logs: read lines of a job's log, all in a range, or the newest that fit.
--
-- KEYS
--   logs      list   log lines, oldest first
-- ARGV
--   start            index of the first line; negative counts from the end
--   stop             index of the last
--   longest          bytes to keep of each line, or "" to read all lines of the range whole
--   room             with `longest`: stop reading lines, from the last, after this many bytes
-- RETURNS
--   count            number of all lines
--   cut              number of lines that were cut
--   lines            oldest first

local logs = unpack(KEYS)
local start, stop, longest, room = unpack(ARGV)

local count = redis.call("LLEN", logs)
if longest == "" then
  return { count, 0, redis.call("LRANGE", logs, start, stop) }
end
longest, room = tonumber(longest), tonumber(room)
local cut, newest_first, lines = 0, {}, {}
for place = tonumber(stop), math.max(tonumber(start), -count), -1 do
  if room <= 0 then
    break
  end
  local line = redis.call("LRANGE", logs, place, place)[1]
  newest_first[#newest_first + 1] = string.sub(line, 1, longest)
  cut, room = cut + (#line > longest and 1 or 0), room - #line
end
for i = #newest_first, 1, -1 do
  lines[#lines + 1] = newest_first[i]
end
return { count, cut, lines }
