-- peek_sorted: see a page of the jobs in a sorted set; pages do not slip when jobs come and go.
--
-- KEYS
--   set        zset   the set of a state
-- ARGV
--   prefix            start of every key of this queue
--   fields            msgpack array: name, most, ... as peek_job takes them
--   room              bytes of large fields that are read in all
--   newest_first      "1", or "0": the lowest score first
--   score             of the last job of the page before; "": this is the first page
--   id                of that job
--   bound             the score after which the page ends: "+inf", "-inf", or a number
--   limit             how many jobs at most
-- RETURNS
--   count             of all jobs there
--   jobs              id, score, values and sizes of its fields (false: it is gone), ... of each

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
