-- peek_listed: show a page of jobs from one list, or from two consecutive lists.
--
-- KEYS
--   newer    list   jobs, oldest at the tail
--   older    list   older jobs, may not exist
-- ARGV
--   prefix          queue key prefix
--   fields          msgpack array: name, most, ... as for peek_job
--   room            byte budget for large fields
--   start           index of the first job, counted from the next to run
--   limit           maximum number of jobs
-- RETURNS
--   count           number of all jobs there
--   jobs            id, score (always ""), values and sizes of its fields (false if it is gone),
--                   ... of each job

local newer, older = unpack(KEYS)
local prefix, fields, room, start, limit = unpack(ARGV)

--- @include "list_page"
--- @include "peek_job"

fields, room, start, limit = cmsgpack.unpack(fields), tonumber(room), tonumber(start),
  tonumber(limit)
local lengths = { redis.call("LLEN", older), redis.call("LLEN", newer) }
local ids = {}
for i, list in ipairs({ older, newer }) do
  local first = math.max(start - (i == 2 and lengths[1] or 0), 0)
  local wanted = limit - #ids
  if wanted > 0 and first < lengths[i] then
    for _, id in ipairs(list_page(list, first, wanted)) do
      ids[#ids + 1] = id
    end
  end
end
local jobs, peeked = {}, nil
for _, id in ipairs(ids) do
  peeked, room = peek_job(prefix .. id, fields, room)
  jobs[#jobs + 1] = id
  jobs[#jobs + 1] = ""
  jobs[#jobs + 1] = peeked or false
end
return { lengths[1] + lengths[2], jobs }
