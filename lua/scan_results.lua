-- scan_results: read what a job's children of one name have returned, some at a time.
--
-- KEYS
--   processed   hash   results of the children that are done, by their keys
-- ARGV
--   name               of the children; one that is not stored any more, or does not name this
--                      parent, has none
--   cursor             where to go on: 0 at first
--   count              about how many children to look at
-- RETURNS
--   cursor             where to go on; 0: those were all
--   results            of each its key and value; one may come twice

local processed = unpack(KEYS)
local name, cursor, count = unpack(ARGV)

local found = redis.call("HSCAN", processed, cursor, "COUNT", count)
local pairs_found, results = found[2], {}
local parent_key = string.gsub(processed, ":processed$", "")
for i = 1, #pairs_found, 2 do
  local child = redis.pcall("HMGET", pairs_found[i], "name", "parentKey")
  if child[1] == name and child[2] == parent_key then
    results[#results + 1], results[#results + 2] = pairs_found[i], pairs_found[i + 1]
  end
end
return { found[1], results }
