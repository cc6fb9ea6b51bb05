-- adopt_jobs: take over jobs that a call took whose reply was lost, as many as one reply may hold.
--
-- KEYS
--   stalled   set   ids that the next sweep gives to another worker if their lock is gone
-- ARGV
--   prefix          start of every key of this queue
--   token           value of their locks
--   ids             msgpack array of the jobs
--   lock_life       ms
--   size            bytes after which no more jobs are read
-- RETURNS
--   count           how many of the ids are done with
--   jobs            id and values of the fields of each that is still locked by the token, in turn
-- EFFECTS
--   all locks with the token live `lock_life` from now, also those of jobs that are read later

local stalled = unpack(KEYS)
local prefix, token, ids, lock_life, size = unpack(ARGV)

--- @include "read_job"
--- @include "typed"

ids, size = cmsgpack.unpack(ids), tonumber(size)

local locks = {}
for i = 1, #ids do
  locks[i] = prefix .. ids[i] .. ":lock"
end
local holders = redis.call("MGET", unpack(locks))
local jobs, count, bytes = {}, 0, 0
for i = 1, #ids do
  local held = holders[i] == token
  if held then
    redis.call("PEXPIRE", locks[i], lock_life)
    typed(redis.pcall("SREM", stalled, ids[i]))
  end
  if bytes < size then
    count = i
    local fields = held and read_job(prefix .. ids[i])
    if fields and not fields.err then
      jobs[#jobs + 1] = ids[i]
      jobs[#jobs + 1] = fields
      for place = 1, #fields do
        bytes = bytes + (fields[place] and #fields[place] or 0)
      end
    end
  end
end
return { count, jobs }
