-- clean_listed: remove jobs from a list, a chunk per call, starting at the tail (oldest).
--
-- KEYS
--   list        list   `wait`, `paused` or `active`
-- ARGV
--   prefix             queue key prefix
--   instants           msgpack array of fields; a job's age is the first that it has. Empty to
--                      ignore age
--   cutoff             ms; younger jobs stay
--   force              "1" to include next runs of schedulers and locked jobs, with their locks
--   position           number of entries at the tail that earlier calls checked and kept
--   size               number of entries to check, up to 1000
--   limit              maximum number of jobs to remove
-- RETURNS
--   position           position to continue from, or -1 at the end
--   removed            ids
-- EFFECTS
--   jobs are deleted with all their keys, leave their parents and free their deduplication ids. A
--   parent in this queue that waited only for them is deleted as well. Ids without a job are
--   removed

local list = unpack(KEYS)
local prefix, instants, cutoff, force, position, size, limit = unpack(ARGV)

--- @include "clear_job"
--- @include "remove_indexes"

instants, cutoff, limit = cmsgpack.unpack(instants), tonumber(cutoff), tonumber(limit)
position, size, force = tonumber(position), tonumber(size), force == "1"
local length = redis.call("LLEN", list)
local ids = redis.call("LRANGE", list, -(position + size), -(position + 1))
if #ids == 0 then
  return { -1, {} }
end
local locks, keys = {}, {}
for i = 1, #ids do
  locks[i] = prefix .. ids[i] .. ":lock"
end
local holders = redis.call("MGET", unpack(locks))

local indexes, removed, scanned = {}, {}, 0
while scanned < #ids and #removed < limit do
  local i = #ids - scanned
  scanned = scanned + 1
  if (force or not holders[i]) and clear_job(prefix, ids[i], instants, cutoff, force, keys) then
    removed[#removed + 1] = ids[i]
    indexes[#indexes + 1] = -(position + scanned)
    if holders[i] then
      keys[#keys + 1] = locks[i]
    end
  end
end
if #keys > 0 then
  redis.call("DEL", unpack(keys))
end
remove_indexes(list, indexes)

if position + scanned >= length then
  return { -1, removed }
end
return { position + scanned - #removed, removed }
