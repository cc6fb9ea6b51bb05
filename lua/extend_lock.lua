-- extend_lock: renew one job's lock, even while its Cluster slot is being migrated.
--
-- KEYS
--   lock       string   token of the worker that runs the job
-- ARGV
--   token               this worker's token
--   duration            ms from now until the lock expires
-- RETURNS
--   1 if this worker holds the lock, else 0
-- EFFECTS
--   a lock that is held lives `duration` from now; no other key is touched

local lock = unpack(KEYS)
local token, duration = unpack(ARGV)

if redis.pcall("GET", lock) ~= token then
  return 0
end
return redis.call("PEXPIRE", lock, duration)
