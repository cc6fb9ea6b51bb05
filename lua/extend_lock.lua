-- extend_lock: renew the lock of one job. It touches no other key, so that it can be done while the
-- queue's slot is on its way from one node of a Cluster to another.
--
-- KEYS
--   lock       string   the token of whoever runs the job
-- ARGV
--   token               what it is if this worker runs it
--   duration            life of the lock from now, ms
-- RETURNS
--   1 if this worker holds the lock, else 0
-- EFFECTS
--   a lock that is held lives `duration` from now

local lock = unpack(KEYS)
local token, duration = unpack(ARGV)

if redis.pcall("GET", lock) ~= token then
  return 0
end
return redis.call("PEXPIRE", lock, duration)
