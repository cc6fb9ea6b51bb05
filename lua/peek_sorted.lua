-- peek_sorted: show a page of jobs from a sorted set; pages do not shift when jobs come and go.
--
-- KEYS
--   set        zset   sorted set of one state
-- ARGV
--   prefix            queue key prefix
--   fields            msgpack array: name, most, ... as for peek_job
--   room              byte budget for large fields
--   newest_first      "1", or "0" for lowest score first
--   score             score of the previous page's last job, or "" for the first page
--   id                that job's id
--   bound             last score to show: "+inf", "-inf", or a number
--   limit             maximum number of jobs
-- RETURNS
--   count             number of all jobs there
--   jobs              id, score, values and sizes of its fields (false if it is gone), ... of each

local set = unpack(KEYS)
local prefix, fields, room, newest_first, score, id, bound, limit = unpack(ARGV)

--- @include "peek_job"
--- @include "rank_after"

newest_first = newest_first == "1"
fields, room, limit = cmsgpack.unpack(fields), tonumber(room), tonumber(limit)
local start = score == "" and 0 or rank_after(set, score, id, newest_first)
local range = newest_first and "ZREVRANGE" or "ZRANGE"
local found = redis.call(range, set, start, start + limit - 1, "WITHSCORES")
local edge = bound == "+inf" and math.huge or bound == "-inf" and -math.huge or tonumber(bound)
local jobs, peeked = {}, nil
for i = 1, #found, 2 do
  local here = tonumber(found[i + 1])
  if (newest_first and here < edge) or (not newest_first and here > edge) then
    break
  end
  peeked, room = peek_job(prefix .. found[i], fields, room)
  jobs[#jobs + 1] = found[i]
  jobs[#jobs + 1] = found[i + 1]
  jobs[#jobs + 1] = peeked or false
end
return { redis.call("ZCARD", set), jobs }
