-- extend_lock: renew the lock of one job, also while its slot is on two nodes of a Cluster.
--
-- KEYS
--   lock       string   the token of whoever runs the job
-- ARGV
--   token               what it is if this worker runs it
--   duration            life of the lock from now, ms
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
