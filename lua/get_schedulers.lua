-- get_schedulers: read one job scheduler, or a page of them in no order.
--
-- KEYS
--   schedulers    zset   job schedulers, by the ms of their next run
-- ARGV
--   prefix               queue key prefix
--   id                   the only one to read, or "" for a page
--   cursor               where the page begins, 0 at first
--   size                 approximate number of schedulers to check
--   declared_by          only schedulers that this app declares, or "" for all
-- RETURNS
--   the cursor of the next page ("0" after the last), then for each scheduler: id, score, all
--   fields of its hash, and `ats` and `opts` of the run at its score, if it exists. A scheduler
--   that exists throughout appears in at least one page

local schedulers = unpack(KEYS)
local prefix, id, cursor, size, declared_by = unpack(ARGV)

local next_page, found = "0", {}
if id == "" then
  next_page, found = unpack(redis.call("ZSCAN", schedulers, cursor, "COUNT", size))
else
  local score = redis.call("ZSCORE", schedulers, id)
  found = score and { id, score } or {}
end
local answer = { next_page }
for i = 1, #found, 2 do
  local hash = prefix .. "repeat:" .. found[i]
  if declared_by == "" or redis.pcall("HGET", hash, "tbapp") == declared_by then
    local fields = redis.pcall("HGETALL", hash)
    local pending = redis.pcall("HMGET", hash .. ":" .. found[i + 1], "ats", "opts")
    answer[#answer + 1] = found[i]
    answer[#answer + 1] = found[i + 1]
    answer[#answer + 1] = fields.err and {} or fields
    answer[#answer + 1] = pending.err and { false, false } or pending
  end
end
return answer
