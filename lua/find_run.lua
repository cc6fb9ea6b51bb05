-- find_run: find the first of some runs of a job scheduler that is still stored, and how it went.
--
-- KEYS
--   completed   zset   jobs that are done
--   failed      zset   jobs that failed for good
-- ARGV
--   prefix             start of every key of this queue
--   ids                msgpack array: ids of the runs, the newest first
-- RETURNS
--   id, state, started, finished; nothing if none of them is stored. `state` is completed, failed,
--   active or waiting; what is not known is empty

local completed, failed = unpack(KEYS)
local prefix, ids = unpack(ARGV)

--- @include "cut_field"

for _, id in ipairs(cmsgpack.unpack(ids)) do
  local key = prefix .. id
  if redis.call("TYPE", key).ok == "hash" then
    local state = "waiting"
    if redis.call("ZSCORE", completed, id) then
      state = "completed"
    elseif redis.call("ZSCORE", failed, id) then
      state = "failed"
    elseif redis.call("EXISTS", key .. ":lock") == 1 then
      state = "active"
    end
    return { id, state, cut_field(key, "processedOn", 32), cut_field(key, "finishedOn", 32) }
  end
end
return {}
