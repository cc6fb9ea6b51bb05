-- record_worker: record that a worker serves this queue, and its status.
--
-- KEYS
--   workers   zset     worker ids, by the ms when they were last seen
--   about     string   the worker's status record
-- ARGV
--   worker_id
--   now                ms
--   record             JSON, or "" if the worker has stopped
--   life               ms until the record expires
--   memory             ms to remember a worker that is gone
-- EFFECTS
--   `workers` has the worker as seen now. `about` lives for `life`, or is deleted. Workers not seen
--   for longer than `memory`, and those beyond 1,000, are forgotten

local workers, about = unpack(KEYS)
local worker_id, now, record, life, memory = unpack(ARGV)

redis.call("ZADD", workers, now, worker_id)
redis.call("PEXPIRE", workers, memory)
if record == "" then
  redis.call("DEL", about)
else
  redis.call("SET", about, record, "PX", life)
end
local forgotten = redis.call("ZRANGEBYSCORE", workers, "-inf",
  string.format("%.0f", tonumber(now) - tonumber(memory)), "LIMIT", 0, 100)
local beyond = redis.call("ZCARD", workers) - 1000
if #forgotten == 0 and beyond > 0 then
  forgotten = redis.call("ZRANGE", workers, 0, math.min(beyond, 100) - 1)
end
if #forgotten > 0 then
  redis.call("ZREM", workers, unpack(forgotten))
end
return 1
