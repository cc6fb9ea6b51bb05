-- scan_children: list keys of a job's children, some at a time.
--
-- KEYS
--   processed         hash   those that are done
--   failed_children   hash   those whose failure is ignored
--   unsuccessful      zset   those whose failure fails the job
--   dependencies      set    those that are pending
-- ARGV
--   place                    which of the keys to look at: 1 at first
--   cursor                   where to go on in it: 0 at first
--   count                    about how many keys to list
-- RETURNS
--   place, cursor            where to go on; place 0: those were all
--   children                 their keys; one may come twice

local processed, failed_children, unsuccessful, dependencies = unpack(KEYS)
local place, cursor, count = unpack(ARGV)

local scans = {
  { "HSCAN", processed, 2 },
  { "HSCAN", failed_children, 2 },
  { "ZSCAN", unsuccessful, 2 },
  { "SSCAN", dependencies, 1 },
}
local hold = string.gsub(dependencies, "dependencies$", "tb:flow") -- it stands for those to come
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
