-- update_data: replace a job's data.
--
-- KEYS
--   job    hash     the job
--   lock   string   its lock
-- ARGV
--   token           of whoever runs the job; "0": of anybody
--   data            JSON
-- RETURNS
--   0, or why it was refused: -1 no such job, -2 no lock, -6 another's lock

local job, lock = unpack(KEYS)
local token, data = unpack(ARGV)

--- @include "is_hash"
--- @include "holds_lock"

if not is_hash(job) then
  return -1
end
local refused = holds_lock(lock, token)
if refused ~= 0 then
  return refused
end
redis.call("HSET", job, "data", data)
return 0
