-- is_maxed: tell whether as many jobs run as the queue's global concurrency allows.
--
-- KEYS
--   active   list   jobs that run
--   meta     hash   settings of the queue
-- RETURNS
--   1 or 0

local active, meta = unpack(KEYS)

--- @include "finite"

local most = finite(redis.call("HGET", meta, "concurrency"))
return most and redis.call("LLEN", active) >= most and 1 or 0
