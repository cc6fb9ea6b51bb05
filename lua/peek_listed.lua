-- peek_listed: see a page of the jobs in one list, or in two that are one after the other.
--
-- KEYS
--   newer    list   of its jobs the one at the tail is the oldest
--   older    list   jobs that are older than all of those; need not exist
-- ARGV
--   prefix          start of every key of this queue
--   fields          msgpack array: name, most, ... as peek_job takes them
--   room            bytes of large fields that are read in all
--   start           place of the first job, counted from the next to run
--   limit           how many jobs at most
-- RETURNS
--   count           of all jobs there
--   jobs            id, score ("": a list has none), values and sizes of its fields (false: it is
--                   gone), ... of each job

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
