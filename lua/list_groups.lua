-- list_groups: return the groups that have jobs or settings, a chunk per call.
--
-- KEYS
--   active   list     running jobs, newest at the head
--   turns    zset     groups whose jobs may start
--   held     zset     groups that a limit holds back
--   groups   hash     settings of the groups
-- ARGV
--   prefix            queue key prefix
--   part              1 to read from `active`, 2 from `turns`, 3 from `held`, 4 from `groups`
--   position          number of entries of this part that were read so far; in `groups`, a cursor
--   size              number of entries to read; in `groups`, about that number
-- RETURNS
--   part, position    where to continue, the position as text; or -1 and "0" at the end
--   waiting           group, number of its waiting jobs, ...; with those that others removed. 0 for
--                     each group in `groups`
--   running           group, number of its running jobs, ... in this chunk

local active, turns, held, groups = unpack(KEYS)
local prefix, part, position, size = unpack(ARGV)

--- @include "group_functions"

local functions, waiting, counts, running = group_functions(prefix, 0), {}, {}, {}
local last, count = position + size - 1, 0
if part == "1" then
  local ids = redis.call("LRANGE", active, position, last)
  count = #ids
  for i = 1, count do
    local opts = redis.pcall("HGET", prefix .. ids[i], "opts")
    local id = type(opts) == "string" and functions.read_group(opts) or ""
    counts[id] = (counts[id] or 0) + 1
  end
elseif part == "4" then
  local found = redis.call("HSCAN", groups, position, "COUNT", size)
  for i = 1, #found[2], 2 do
    local id = string.match(found[2][i], "^%+(.+)$")
    if id then
      waiting[#waiting + 1], waiting[#waiting + 2] = id, 0
    end
  end
  if found[1] == "0" then
    return { -1, "0", waiting, running }
  end
  return { 4, found[1], waiting, running }
else
  local ids = redis.call("ZRANGE", part == "2" and turns or held, position, last)
  count = #ids
  for i = 1, count do
    waiting[2 * i - 1] = ids[i]
    waiting[2 * i] = redis.call("ZCARD", functions.key_of(ids[i], "jobs"))
  end
end
for id, running_count in pairs(counts) do
  running[#running + 1], running[#running + 2] = id, running_count
end
if count == tonumber(size) then
  return { tonumber(part), string.format("%.0f", last + 1), waiting, running }
end
return { part + 1, "0", waiting, running }
