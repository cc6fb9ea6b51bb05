-- get_schedulers: read one job scheduler, or a page of them, in no order.
--
-- KEYS
--   schedulers    zset   job schedulers, by the ms of the run that comes next
-- ARGV
--   prefix               start of every key of this queue
--   id                   the only one to read; "": a page
--   cursor               where the page begins, 0 at first
--   size                 about how many schedulers of the page are looked at
--   declared_by          only those that this app declares; "": all
-- RETURNS
--   the cursor of the next page, "0" if there is none; then for each scheduler its id, its score,
--   all fields of its hash, and `ats` and `opts` of the run at its score, as far as it is there.
--   One that stays there while the pages are read is in one of them, or in several

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
