-- add_plain: add one plain job that can run immediately. A repeated call returns the first answer.
--
-- KEYS
--   memo      string   number, mark and answers of the last call in its sequence, as in `add`
--   counter   string   last job number
--   meta      hash     queue settings
--   wait      list     waiting jobs, taken from the tail
--   active    list     running jobs
--   marker    zset     wakes workers
--   events    stream   queue events
-- ARGV
--   prefix             queue key prefix
--   call               number of this call in its sequence; the next call has a higher one
--   mark               hex digits that distinguish it from another producer's call with that number
--   memo_life          ms to remember the answer
--   name               job name
--   opts               JSON
--   timestamp          ms
--   data               JSON
-- RETURNS
--   the job's id; or nil, and nothing is done, if the sequence has moved on or another producer
--   used the number
-- EFFECTS
--   as in `add`, with two fewer commands and a third fewer instructions

local memo, counter, meta, wait, active, marker, events = unpack(KEYS)
local prefix, call, mark, memo_life, name, opts, timestamp, data = unpack(ARGV)

-- SET with GET writes the new memo and reads the old one. In msgpack, the answers of `add` are an
-- array of four: position 1, the id, 0 for added, one job.
local redis = redis
local id = string.format("%.0f", redis.call("INCRBY", counter, "1"))
local answers = "\148\1" .. string.char(160 + #id) .. id .. "\0\1"
local new = call .. ":" .. mark .. ":" .. answers
local previous = redis.call("SET", memo, new, "PX", memo_life, "GET")
if previous and (tonumber(string.match(previous, "^%d*")) or 0) >= tonumber(call) then
  redis.call("SET", memo, previous, "PX", memo_life)
  redis.call("INCRBY", counter, "-1")
  local start = call .. ":" .. mark .. ":"
  if string.sub(previous, 1, #start) == start then
    return cmsgpack.unpack(string.sub(previous, #start + 1))[2]
  end
  -- A delayed duplicate, or a sequence shared with a cloned process.
  return false
end

local target = wait
local function write()
  local fields = redis.call("HMGET", meta, "paused", "concurrency", "opts.maxLenEvents")
  local is_blocked, limit = false, fields[3]
  if fields[1] or fields[2] then
    --- @include "queue_state"
    local queue = queue_state(meta, active, wait)
    target, is_blocked = queue.target, queue.blocked
  end
  if not limit or not string.find(limit, "^[1-9]%d?%d?%d?%d?%d?%d?%d?$") then
    --- @include "event_limit"
    limit = event_limit(meta, { max_events = limit })
  end
  redis.call("XADD", events, "*", "event", "added", "jobId", id, "name", name)
  redis.call("HSET", prefix .. id, "name", name, "data", data, "opts", opts,
    "timestamp", timestamp, "delay", "0", "priority", "0")
  redis.call("XADD", events, "MAXLEN", "~", limit, "*", "event", "waiting", "jobId", id)
  redis.call("LPUSH", target, id)
  if not is_blocked then
    redis.pcall("ZADD", marker, "0", "0") -- if refused, workers poll later
  end
end

-- All or nothing: see `add`.
local is_written, problem = pcall(write)
if not is_written then
  --- @include "undo_add"
  undo_add(prefix, id, {}, target)
  if previous then
    redis.pcall("SET", memo, previous, "PX", memo_life)
  else
    redis.pcall("DEL", memo)
  end
  error(problem, 0)
end
return id
