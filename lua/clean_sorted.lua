-- clean_sorted: remove jobs from a sorted set, a piece at a time, from the lowest score on.
--
-- KEYS
--   set         zset   the set of a state
-- ARGV
--   prefix             start of every key of this queue
--   instants           msgpack array of fields: the first that a job has is its age; none: any age
--   cutoff             ms; what is younger stays
--   force              "1": next runs of schedulers go too
--   lowest             score to begin at
--   skip               how many jobs of that very score were looked at before, and stay
--   highest            score to end at
--   size               how many jobs to look at, up to 1000
--   limit              how many to remove at the most
-- RETURNS
--   lowest, skip       where to go on; "" and 0: that was all
--   removed            ids
-- EFFECTS
--   as those of `clean_listed`

local set = unpack(KEYS)
local prefix, instants, cutoff, force, lowest, skip, highest, size, limit = unpack(ARGV)

--- @include "clear_job"

instants, cutoff, limit = cmsgpack.unpack(instants), tonumber(cutoff), tonumber(limit)
skip, size = tonumber(skip), tonumber(size)
local found =
  redis.call("ZRANGEBYSCORE", set, lowest, highest, "WITHSCORES", "LIMIT", skip, size)
local removed, keys, looked_at = {}, {}, 0
while looked_at < #found / 2 and #removed < limit do
  local id, score = found[2 * looked_at + 1], found[2 * looked_at + 2]
  looked_at = looked_at + 1
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

if looked_at < size and #removed < limit then
  return { "", 0, removed }
end
return { lowest, skip, removed }
