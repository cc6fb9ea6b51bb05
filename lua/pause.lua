-- pause: stop workers from fetching jobs, or let them fetch again.
--
-- KEYS
--   wait          list     waiting jobs, taken from the tail
--   paused        list     waiting jobs while the queue is paused, if BullMQ 5 may use it
--   prioritized   zset     waiting jobs with a priority
--   delayed       zset     delayed jobs, by due time
--   active        list     running jobs
--   meta          hash     queue settings
--   events        stream   queue events
--   marker        zset     wakes workers
--   note          string   who paused the queue, when and why
-- ARGV
--   action                 "pause", "move" to continue moving jobs of a paused queue, or "resume"
--   size                   maximum number of jobs to move
--   about                  for "pause": the note to store, or ""
-- RETURNS
--   1 if more jobs must be moved, else 0. A queue stays paused until "resume" returns 0
-- EFFECTS
--   running jobs continue. While a queue is paused, waiting jobs are in `paused`, behind those
--   already there, unless the queue belongs to BullMQ 6. On resume, the jobs in `paused` go to the
--   tail of `wait`, and nothing is overwritten

local wait, paused, prioritized, delayed, active, meta, events, marker, note = unpack(KEYS)
local action, size, about = unpack(ARGV)

--- @include "queue_state"
--- @include "wake_worker"
--- @include "add_delay_marker"

-- Join `wait` and `paused` into `whole` (one of the two), with the older jobs of `paused` at the
-- tail, where jobs are taken. Return 1 if more entries must be moved, else 0. Entries of the
-- shorter list are moved, up to `size`, so the order is correct between calls.
local function join_lists(whole)
  local lengths = { redis.call("LLEN", wait), redis.call("LLEN", paused) }
  local is_wait_shorter = lengths[1] < lengths[2]
  local count = math.min(lengths[1], lengths[2], tonumber(size))
  if count > 0 then
    -- Raise, before anything is written, if trimming would be refused.
    redis.call("LTRIM", is_wait_shorter and wait or paused, 0, -1)
  end
  for done = 0, count - 1, 5000 do
    local part = math.min(5000, count - done)
    if is_wait_shorter then
      local ids, last = redis.call("LRANGE", wait, -part, -1), {}
      for i = 1, part do
        last[i] = ids[part + 1 - i]
      end
      redis.call("LPUSH", paused, unpack(last))
      redis.call("LTRIM", wait, 0, -part - 1)
    else
      redis.call("RPUSH", wait, unpack(redis.call("LRANGE", paused, 0, part - 1)))
      redis.call("LTRIM", paused, part, -1)
    end
  end
  if math.min(lengths[1], lengths[2]) > count then
    return 1
  end
  local other = whole == wait and paused or wait
  if redis.call("EXISTS", other) == 1 then
    redis.call("RENAME", other, whole)
  end
  return 0
end

if action == "resume" then
  if join_lists(wait) == 1 then
    return 1
  end
  redis.call("HDEL", meta, "paused")
  if redis.call("EXISTS", wait, prioritized) > 0 then
    wake_worker(marker, queue_state(meta, active, wait, paused).blocked)
  else
    add_delay_marker(marker, delayed)
  end
  redis.call("XADD", events, "*", "event", "resumed")
  return 0
end
if action == "pause" then
  redis.call("DEL", marker) -- first: a full Redis refuses a script's first addition
  if about ~= "" then
    redis.call("SET", note, about)
  end
  redis.call("HSET", meta, "paused", 1)
  redis.call("XADD", events, "*", "event", "paused")
end
return queue_state(meta, active, false, paused).target and join_lists(paused) or 0
