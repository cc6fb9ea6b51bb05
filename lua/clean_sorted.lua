-- clean_sorted: remove jobs from a sorted set, a chunk per call, starting at the lowest score.
--
-- KEYS
--   set         zset   sorted set of one state
-- ARGV
--   prefix             queue key prefix
--   instants           msgpack array of fields; a job's age is the first that it has. Empty to
--                      ignore age
--   cutoff             ms; younger jobs stay
--   force              "1" to include next runs of schedulers
--   lowest             score to start at
--   skip               number of jobs with that score that earlier calls checked and kept
--   highest            score to stop at
--   size               number of jobs to check, up to 1000
--   limit              maximum number of jobs to remove
-- RETURNS
--   lowest, skip       where to continue, or "" and 0 at the end
--   removed            ids
-- EFFECTS
--   as in `clean_listed`

local set = unpack(KEYS)
local prefix, instants, cutoff, force, lowest, skip, highest, size, limit = unpack(ARGV)

--- @include "clear_job"

instants, cutoff, limit = cmsgpack.unpack(instants), tonumber(cutoff), tonumber(limit)
skip, size = tonumber(skip), tonumber(size)
local found =
  redis.call("ZRANGEBYSCORE", set, lowest, highest, "WITHSCORES", "LIMIT", skip, size)
local removed, keys, scanned = {}, {}, 0
while scanned < #found / 2 and #removed < limit do
  local id, score = found[2 * scanned + 1], found[2 * scanned + 2]
  scanned = scanned + 1
  if score ~= lowest then
    lowest, skip = score, 0
  end
  if clear_job(prefix, id, instants, cutoff, force == "1", keys) then
    removed[#removed + 1] = id
  else
    skip = skip + 1
  end
end
if #keys > 0 then
  redis.call("DEL", unpack(keys))
end
if #removed > 0 then
  redis.call("ZREM", set, unpack(removed))
end

if scanned < size and #removed < limit then
  return { "", 0, removed }
end
return { lowest, skip, removed }
