-- is_maxed: return whether the queue's global concurrency limit is reached.
--
-- KEYS
--   active   list   running jobs
--   meta     hash   queue settings
-- RETURNS
--   1 or 0

local active, meta = unpack(KEYS)

--- @include "finite"

local most = finite(redis.call("HGET", meta, "concurrency"))
return most and redis.call("LLEN", active) >= most and 1 or 0
