-- scan_children: list the keys of a job's children, a few per call.
--
-- KEYS
--   processed         hash   completed children
--   failed_children   hash   children whose failure is ignored
--   unsuccessful      zset   children whose failure fails the job
--   dependencies      set    pending children
-- ARGV
--   place                    which of the keys to scan, 1 at first
--   cursor                   cursor in that key, 0 at first
--   count                    approximate number of keys to list
-- RETURNS
--   place, cursor            where to continue; place is 0 at the end
--   children                 their keys, possibly repeated

local processed, failed_children, unsuccessful, dependencies = unpack(KEYS)
local place, cursor, count = unpack(ARGV)

local scans = {
  { "HSCAN", processed, 2 },
  { "HSCAN", failed_children, 2 },
  { "ZSCAN", unsuccessful, 2 },
  { "SSCAN", dependencies, 1 },
}
-- Placeholder for children to come.
local hold = string.gsub(dependencies, "dependencies$", "tb:flow")
place, count = tonumber(place), tonumber(count)
local children = {}
while scans[place] and #children < count do
  local command, key, step = unpack(scans[place])
  local found = redis.pcall(command, key, cursor, "COUNT", count)
  cursor = found.err and "0" or found[1]
  for i = 1, found.err and 0 or #found[2], step do
    if found[2][i] ~= hold then
      children[#children + 1] = found[2][i]
    end
  end
  if cursor == "0" then
    place = place + 1
  end
end
return { scans[place] and place or 0, cursor, children }
