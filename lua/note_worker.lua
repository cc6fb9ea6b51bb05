-- note_worker: write down that a worker serves this queue, and what it is doing.
--
-- KEYS
--   workers   zset     ids of workers, by the ms when they were last seen
--   about     string   what this worker says about itself
-- ARGV
--   worker_id
--   now                ms
--   record             JSON; "": it is gone
--   life               for how many ms the record holds
--   memory             for how many ms a worker that is gone is remembered
-- EFFECTS
--   the worker is in `workers` as seen now, and `about` lives for `life`, or is gone; workers that
--   were not seen for longer than `memory`, and those beyond 1,000, are forgotten

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
