--- @include "finite"
--- @include "ignore_wrongtype"
--- @include "assert_can_remove"
--- @include "wake_worker"

-- promote_due(prefix, keys, queue, now, most): move up to `most` due jobs from delayed to waiting.
-- `keys` has delayed, prioritized, priority_counter, marker, events; `queue` is from queue_state.
local function promote_due(prefix, keys, queue, now, most)
  local delayed, events = keys.delayed, keys.events
  local due = redis.call("ZRANGEBYSCORE", delayed, "-inf", (now + 1) * 4096 - 1, "LIMIT", 0, most)
  if #due == 0 then
    return
  end
  assert_can_remove(delayed)
  local waiting, ranked, classes = {}, {}, {}
  for i = 1, #due do
    local id = due[i]
    local priority = finite(ignore_wrongtype(redis.pcall("HGET", prefix .. id, "priority"))) or 0
    if priority == 0 then
      waiting[#waiting + 1] = id
    else
      ranked[#ranked + 1] = id
      classes[#classes + 1] = priority * 0x100000000
        + redis.call("INCR", keys.priority_counter) % 0x100000000
      classes[#classes + 1] = id
    end
  end
  if #waiting > 0 then
    redis.call("LPUSH", queue.target, unpack(waiting))
    redis.call("ZREM", delayed, unpack(waiting))
  end
  if #ranked > 0 then
    redis.call("ZADD", keys.prioritized, unpack(classes))
    redis.call("ZREM", delayed, unpack(ranked))
  end
  for i = 1, #due do
    redis.call("XADD", events, "*", "event", "waiting", "jobId", due[i], "prev", "delayed")
    redis.pcall("HSET", prefix .. due[i], "delay", "0")
  end
  wake_worker(keys.marker, queue.blocked)
end
