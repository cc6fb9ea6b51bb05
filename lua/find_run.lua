-- find_run: find the newest run of a job scheduler that is still stored, and its state.
--
-- KEYS
--   completed   zset   completed jobs
--   failed      zset   failed jobs
-- ARGV
--   prefix             queue key prefix
--   ids                msgpack array: run ids, newest first
-- RETURNS
--   id, state, started, finished; empty if none is stored. `state` is completed, failed, active or
--   waiting. Unknown values are ""

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
