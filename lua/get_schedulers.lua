-- get_schedulers: read job schedulers by the time of their next runs, or one of them.
--
-- KEYS
--   schedulers   zset   job schedulers, by the ms of the run that comes next
-- ARGV
--   prefix              start of every key of this queue
--   first               place of the first one, from 0
--   last                place of the last one
--   id                  "": those places; else only the scheduler of this id
-- RETURNS
--   for each: its id, its score, all fields of its hash, and `ats` and `opts` of the run at its
--   score, as far as it is there

local schedulers = unpack(KEYS)
local prefix, first, last, id = unpack(ARGV)

local found
if id == "" then
  found = redis.call("ZRANGE", schedulers, first, last, "WITHSCORES")
else
  local score = redis.call("ZSCORE", schedulers, id)
  found = score and { id, score } or {}
end
local answer = {}
for i = 1, #found, 2 do
  local fields = redis.pcall("HGETALL", prefix .. "repeat:" .. found[i])
  local run = prefix .. "repeat:" .. found[i] .. ":" .. found[i + 1]
  local pending = redis.pcall("HMGET", run, "ats", "opts")
  answer[#answer + 1] = found[i]
  answer[#answer + 1] = found[i + 1]
  answer[#answer + 1] = fields.err and {} or fields
  answer[#answer + 1] = pending.err and { false, false } or pending
end
return answer
