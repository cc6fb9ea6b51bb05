-- list_jobs: read a page of the jobs in one state, whole or in part.
--
-- KEYS
--   place       any    jobs of the state: a list, oldest at the tail, or a sorted set
--   older       list   for a list: jobs older than those in `place`, may not exist
-- ARGV
--   prefix             queue key prefix
--   fields             msgpack array: name, most, ... as for read_fields; or "" for all fields
--   room               byte budget for large fields. If all fields are read, the page ends when it
--                      is used up
--   descending         "1" for newest or highest score first, "0" for oldest or lowest first
--   start              index of the first job in this order
--   score              for a sorted set: score of the job before the page, or "" to use `start`
--   id                 that job's id
--   bound              for a sorted set: last score to read: "+inf", "-inf", or a number; "" for a
--                      list
--   limit              maximum number of jobs
--   with_locks         "1" to read the locks of running jobs
-- RETURNS
--   count              number of all jobs there
--   is_last            1 if no jobs follow, or only jobs beyond `bound`
--   jobs               id, score or lock, fields, ... of each job. Its score in a sorted set; its
--                      lock's remaining ms, as in PTTL, with locks; otherwise "". The fields are
--                      names and values if all are read, otherwise values and sizes; false if the
--                      job is gone

local place, older = unpack(KEYS)
local prefix, fields, room, descending, start, score, id, bound, limit, with_locks = unpack(ARGV)

--- @include "list_page"
--- @include "rank_after"
--- @include "read_fields"
--- @include "ignore_wrongtype"

descending, with_locks = descending == "1", with_locks == "1"
room, start, limit = tonumber(room), tonumber(start), tonumber(limit)
local ids, scores, count = {}, {}, 0
if bound == "" then
  local lists = descending and { place, older } or { older, place }
  for i = 1, 2 do
    local length = redis.call("LLEN", lists[i])
    local first, wanted = math.max(start - count, 0), limit - #ids
    if wanted > 0 and first < length then
      local page = descending and redis.call("LRANGE", lists[i], first, first + wanted - 1)
        or list_page(lists[i], first, wanted)
      for n = 1, #page do
        ids[#ids + 1] = page[n]
      end
    end
    count = count + length
  end
else
  count = redis.call("ZCARD", place)
  start = score == "" and start or rank_after(place, score, id, descending)
  local range = descending and "ZREVRANGE" or "ZRANGE"
  local found = redis.call(range, place, start, start + limit - 1, "WITHSCORES")
  for i = 1, #found, 2 do
    ids[#ids + 1], scores[#scores + 1] = found[i], found[i + 1]
  end
end

local edge = bound == "+inf" and math.huge or bound == "-inf" and -math.huge or tonumber(bound)
local is_whole, is_last, jobs = fields == "", start + #ids >= count, {}
fields = is_whole or cmsgpack.unpack(fields)
for i = 1, #ids do
  local here, key, found = tonumber(scores[i]), prefix .. ids[i], nil
  if here and (descending and here < edge or not descending and here > edge) then
    is_last = true
    break
  elseif not is_whole then
    found, room = read_fields(key, fields, room)
  elseif room <= 0 then
    is_last = false
    break
  else
    found = redis.pcall("HGETALL", key)
    found = found.err and ignore_wrongtype(found) or found
    for n = 1, #found do
      room = room - #found[n]
    end
    found = #found > 0 and found
  end
  jobs[#jobs + 1] = ids[i]
  jobs[#jobs + 1] = with_locks and redis.call("PTTL", key .. ":lock") or scores[i] or ""
  jobs[#jobs + 1] = found or false
end
return { count, is_last and 1 or 0, jobs }
