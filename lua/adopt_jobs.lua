-- adopt_jobs: adopt the jobs fetched by a call whose reply was lost, as many as fit in one reply.
--
-- KEYS
--   stalled   set   ids that the next sweep gives to another worker if their lock is gone
-- ARGV
--   prefix          queue key prefix
--   token           token of their locks
--   ids             msgpack array of job ids
--   lock_life       ms
--   size            stop reading jobs after this many bytes
-- RETURNS
--   count           number of ids handled
--   jobs            id, field values, ... of each job that the token still locks
-- EFFECTS
--   every lock with the token lives `lock_life` from now, even if its job is read by a later call

local stalled = unpack(KEYS)
local prefix, token, ids, lock_life, size = unpack(ARGV)

--- @include "read_job"
--- @include "ignore_wrongtype"

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
    ignore_wrongtype(redis.pcall("SREM", stalled, ids[i]))
  end
  if bytes < size then
    count = i
    local fields = held and read_job(prefix .. ids[i])
    if fields and not fields.err then
      jobs[#jobs + 1] = ids[i]
      jobs[#jobs + 1] = fields
      for index = 1, #fields do
        bytes = bytes + (fields[index] and #fields[index] or 0)
      end
    end
  end
end
return { count, jobs }
