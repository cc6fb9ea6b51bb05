-- settle_cycle: find out what a cycle has done whose reply was lost, a piece of `active` at a time.
--
-- KEYS
--   active   list   jobs that run, newest at the head
-- ARGV
--   prefix          start of every key of this queue
--   token           value of the locks of the jobs that it may have taken
--   ended           msgpack array of the outcomes that it carried: job_id, token, ...
--   position        how much of the head of `active` was looked at
--   size            how many jobs to look at
-- RETURNS
--   position        where to go on; -1: all was looked at
--   jobs            id and values of the fields of each job that it took, in turn
--   traces          of each outcome: 1 if its job is still locked by its token, else 0; then the
--                   job's `finishedOn` (-1: there is no such job) and `atm`, 0 for what is missing
-- EFFECTS
--   none

local active = unpack(KEYS)
local prefix, token, ended, position, size = unpack(ARGV)

--- @include "read_job"

position, size = tonumber(position), tonumber(size)

local jobs = {}
local ids = redis.call("LRANGE", active, position, position + size - 1)
if #ids > 0 then
  local locks = {}
  for i = 1, #ids do
    locks[i] = prefix .. ids[i] .. ":lock"
  end
  local holders = redis.call("MGET", unpack(locks))
  for i = 1, #ids do
    local fields = holders[i] == token and read_job(prefix .. ids[i])
    if fields and not fields.err then
      jobs[#jobs + 1] = ids[i]
      jobs[#jobs + 1] = fields
    end
  end
end

local traces = {}
ended = cmsgpack.unpack(ended)
for i = 1, #ended, 2 do
  local key = prefix .. ended[i]
  local fields = redis.pcall("HMGET", key, "finishedOn", "atm", "ats")
  local held = redis.call("GET", key .. ":lock") == ended[i + 1]
  traces[#traces + 1] = held and 1 or 0
  traces[#traces + 1] = fields[3] and (tonumber(fields[1]) or 0) or -1
  traces[#traces + 1] = tonumber(fields[2]) or 0
end

local next_position = -1
if #ids == size then
  -- A little is looked at twice: jobs that end meanwhile let the others move towards the head.
  next_position = position + size - math.floor(size / 8)
end
return { next_position, jobs, traces }
