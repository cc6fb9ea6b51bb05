-- peek_failures: read only the fields of failed jobs that are needed to group them.
--
-- KEYS
--   failed   zset   failed jobs
-- ARGV
--   prefix          queue key prefix
--   ranks           msgpack array: job ranks, counted from the newest; or {}
--   ids             msgpack array: job ids, instead of ranks
--   longest         bytes to keep of each field
--   room            stop reading jobs after this many bytes of large fields
-- RETURNS
--   id, score, name, reason, finished, head, tail, ... of each job, until `room` is used up.
--   Unknown values are "". `head` and `tail` are from the newest stack, as encoded in JSON

local failed = unpack(KEYS)
local prefix, ranks, ids, longest, room = unpack(ARGV)

--- @include "cut_field"
--- @include "cut_stack"

ranks, ids, room = cmsgpack.unpack(ranks), cmsgpack.unpack(ids), tonumber(room)
local jobs = {}
for place = 1, math.max(#ranks, #ids) do
  local id, score = ids[place], nil
  if id then
    score = redis.call("ZSCORE", failed, id)
  else
    id, score = unpack(redis.call("ZREVRANGE", failed, ranks[place], ranks[place], "WITHSCORES"))
  end
  if room <= 0 then
    break
  end
  if id and score then
    local job = prefix .. id
    local head, tail, size = cut_stack(job)
    room = room - size
    jobs[#jobs + 1] = id
    jobs[#jobs + 1] = score
    jobs[#jobs + 1] = cut_field(job, "name", longest)
    jobs[#jobs + 1] = cut_field(job, "failedReason", longest)
    jobs[#jobs + 1] = cut_field(job, "finishedOn", 32)
    jobs[#jobs + 1] = head
    jobs[#jobs + 1] = tail
  else
    jobs[#jobs + 1] = id or ""
    for _ = 2, 7 do
      jobs[#jobs + 1] = ""
    end
  end
end
return jobs
