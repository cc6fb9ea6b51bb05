-- preview_items: read the last entries of a job's stream, the newest that fit.
--
-- KEYS
--   items     stream   the job's items
-- ARGV
--   most               number of entries to read
--   longest            bytes of an item above which only its length is returned. Other fields are
--                      cut there
-- RETURNS
--   count              number of all entries
--   first              id of the first entry, or ""
--   entries            oldest first; each has the id and its fields. A field `length` replaces a
--                      longer `item`

local items = unpack(KEYS)
local most, longest = unpack(ARGV)

--- @include "ignore_wrongtype"

local MOST_FIELDS = 6
most, longest = tonumber(most), tonumber(longest)
local count = ignore_wrongtype(redis.pcall("XLEN", items)) or 0
if count == 0 then
  return { 0, "", {} }
end
local newest_first, entries, before = {}, {}, "+"
for _ = 1, most do
  local found = redis.call("XREVRANGE", items, before, "-", "COUNT", 2)
  local entry = before == "+" and found[1] or found[2]
  if not entry then
    break
  end
  before = entry[1]
  if entry[2][1] == "item" and #entry[2][2] > longest then
    entry[2] = { "length", tostring(#entry[2][2]) }
  end
  local fields = {}
  for i = 1, math.min(#entry[2], MOST_FIELDS) do
    fields[i] = string.sub(entry[2][i], 1, longest)
  end
  entry[2] = fields
  newest_first[#newest_first + 1] = entry
end
for i = #newest_first, 1, -1 do
  entries[#entries + 1] = newest_first[i]
end
local first = redis.call("XRANGE", items, "-", "+", "COUNT", 1)[1]
return { count, first and first[1] or "", entries }
