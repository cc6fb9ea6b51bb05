-- peek_failures: read what failed jobs have in common, and no more of them than that.
--
-- KEYS
--   failed   zset   jobs that failed for good
-- ARGV
--   prefix          start of every key of this queue
--   ranks           msgpack array: places of jobs, counted from the newest; or {}
--   ids             msgpack array: ids of jobs, instead of places
--   longest         bytes of a field after which it is cut
--   room            bytes of large fields after which no more jobs are read
-- RETURNS
--   id, score, name, reason, finished, head, tail, ... of each job, or of the first of them: what
--   is not known is empty; `head` and `tail` are of the newest stack, as JSON has it

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
