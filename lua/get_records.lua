-- get_records: read the status records of taskbull workers.
--
-- KEYS
--   workers   zset   worker ids, by the ms when they were last seen
-- ARGV
--   prefix           queue key prefix
--   most             maximum number of workers, the most recently seen first
-- RETURNS
--   id, last seen, record, ...; the record is "" if it is gone or larger than 4 kB

local workers = unpack(KEYS)
local prefix, most = unpack(ARGV)

--- @include "ignore_wrongtype"

local found, records = redis.call("ZREVRANGE", workers, 0, most - 1, "WITHSCORES"), {}
for i = 1, #found, 2 do
  local about = ignore_wrongtype(redis.pcall("GET", prefix .. "tb:worker:" .. found[i] .. ":about"))
  records[#records + 1] = found[i]
  records[#records + 1] = found[i + 1]
  records[#records + 1] = about and #about <= 4096 and about or ""
end
return records
