-- scan_results: read the results of a job's children with a given name, a few per call.
--
-- KEYS
--   processed   hash   results of completed children, by child key
-- ARGV
--   name               child name; children that are no longer stored, or do not name this parent,
--                      never match
--   cursor             where to continue, 0 at first
--   count              approximate number of children to check
-- RETURNS
--   cursor             where to continue, or 0 at the end
--   results            key, value, ...; a child may be repeated

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
