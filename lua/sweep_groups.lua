-- sweep_groups: repair the groups of a queue, a chunk of `prioritized` per call.
--
-- KEYS
--   wait          list     waiting jobs, taken from the tail
--   prioritized   zset     waiting jobs with a priority, or in groups
--   turns         zset     groups whose jobs may start
--   held          zset     groups that a limit holds back
--   running       hash     groups of running jobs
--   marker        zset     wakes workers
--   meta          hash     queue settings
-- ARGV
--   prefix                 queue key prefix
--   now                    ms
--   position               number of waiting jobs checked so far
--   size                   number of waiting jobs to check
-- RETURNS
--   position to continue from, or -1 at the end, -2 to call again with position 0
-- EFFECTS
--   places of jobs without a lock are freed, jobs in `wait` enter their groups, 100 per call, and
--   jobs that no group has wait in their group again

local wait, prioritized, turns, held, running, marker, meta = unpack(KEYS)
local prefix, now, position, size = unpack(ARGV)

--- @include "group_functions"

local MOST_PLACES = 1000
local functions = group_functions(prefix, tonumber(now))
position, size = tonumber(position), tonumber(size)
local any_repaired = false
if position == 0 then
  local places = redis.call("HSCAN", running, 0, "COUNT", MOST_PLACES)[2]
  local gone = {}
  for i = 1, #places, 2 do
    if redis.call("EXISTS", prefix .. places[i] .. ":lock") == 0 then
      gone[#gone + 1] = places[i]
    end
  end
  any_repaired = functions.free(gone, #gone)
  if functions.place_waiting(wait, 0) then
    redis.call("ZADD", marker, 0, "0")
    return -2
  end
end

local ids = redis.call("ZRANGEBYSCORE", prioritized, "-inf", "(4294967296", "LIMIT", position, size)
local lost, checked = {}, {}
for i = 1, #ids do
  local opts = redis.pcall("HGET", prefix .. ids[i], "opts")
  local group = type(opts) == "string" and functions.read_group(opts) or ""
  if not redis.call("ZSCORE", functions.key_of(group, "jobs"), ids[i]) then
    lost[#lost + 1] = ids[i]
  elseif not checked[group] then
    checked[group] = true
    if not redis.call("ZSCORE", turns, group) and not redis.call("ZSCORE", held, group) then
      functions.join_turns(group)
      any_repaired = true
    end
  end
end
if #lost > 0 then
  functions.place_all(lost)
end
-- BullMQ's obliterate deletes `meta` and all jobs, but no key of groups. A fetch removes those.
if (#ids > 0 or redis.call("EXISTS", turns, held, running) > 0)
  and redis.call("HSET", meta, "tb:groups", "1") == 1 then
  any_repaired = true
end
if any_repaired or #lost > 0 then
  redis.call("ZADD", marker, 0, "0")
end
return #ids == size and position + size or -1
