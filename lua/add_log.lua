-- add_log: add a line to a job's log.
--
-- KEYS
--   job    hash     the job
--   lock   string   its lock
--   logs   list     its lines, oldest first
-- ARGV
--   token           of whoever runs the job; "0": of anybody
--   line
--   keep            how many lines are kept, the last ones; 0: all
-- RETURNS
--   how many lines there are now, or why it was refused: -1 no such job, -2 no lock,
--   -6 another's lock

local job, lock, logs = unpack(KEYS)
local token, line, keep = unpack(ARGV)

--- @include "is_hash"
--- @include "holds_lock"

if not is_hash(job) then
  return -1
end
local refused = holds_lock(lock, token)
if refused ~= 0 then
  return refused
end
local count = redis.call("RPUSH", logs, line)
keep = tonumber(keep)
if keep <= 0 then
  return count
end
redis.call("LTRIM", logs, -keep, -1)
return math.min(count, keep)
