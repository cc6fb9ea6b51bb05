-- get_records: read what our workers say about themselves.
--
-- KEYS
--   workers   zset   ids of workers, by the ms when they were last seen
-- ARGV
--   prefix           start of every key of this queue
--   most             how many workers are looked at, those that were seen last
-- RETURNS
--   id, last seen, record, ... of each: "" where the record is gone, or has more than 4 kB

local workers = unpack(KEYS)
local prefix, most = unpack(ARGV)

--- @include "typed"

local found, records = redis.call("ZREVRANGE", workers, 0, most - 1, "WITHSCORES"), {}
for i = 1, #found, 2 do
  local about = typed(redis.pcall("GET", prefix .. "tb:worker:" .. found[i] .. ":about"))
  records[#records + 1] = found[i]
  records[#records + 1] = found[i + 1]
  records[#records + 1] = about and #about <= 4096 and about or ""
end
return records
