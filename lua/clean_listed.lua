-- clean_listed: remove jobs from a list, a piece at a time, from its tail, the oldest, on.
--
-- KEYS
--   list        list   `wait`, `paused` or `active`
-- ARGV
--   prefix             start of every key of this queue
--   instants           msgpack array of fields: the first that a job has is its age; none: any age
--   cutoff             ms; what is younger stays
--   force              "1": locked jobs and next runs of schedulers go too, and the locks
--   position           how many entries at the tail were looked at before, and stay
--   size               how many entries to look at, up to 1000
--   limit              how many to remove at the most
-- RETURNS
--   position           where to go on; -1: that was all
--   removed            ids
-- EFFECTS
--   jobs are deleted with all they have, leave their parents and free their deduplication ids; a
--   parent in this queue that waited for them alone goes too. Ids without a job are removed

local list = unpack(KEYS)
local prefix, instants, cutoff, force, position, size, limit = unpack(ARGV)

--- @include "clear_job"
--- @include "cut_out"

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

local places, removed, looked_at = {}, {}, 0
while looked_at < #ids and #removed < limit do
  local i = #ids - looked_at
  looked_at = looked_at + 1
  if (force or not holders[i]) and clear_job(prefix, ids[i], instants, cutoff, force, keys) then
    removed[#removed + 1] = ids[i]
    places[#places + 1] = -(position + looked_at)
    if holders[i] then
      keys[#keys + 1] = locks[i]
    end
  end
end
if #keys > 0 then
  redis.call("DEL", unpack(keys))
end
cut_out(list, places)

if position + looked_at >= length then
  return { -1, removed }
end
return { position + looked_at - #removed, removed }
