--- @include "mark_base"

-- promote_due(prefix, delayed, prioritized, priority_counter, marker, events, queue, now): let jobs
-- wait whose time has come, up to 1000 of them. `queue` is what queue_state gave.
local function promote_due(
  prefix, delayed, prioritized, priority_counter, marker, events, queue, now)
  local due = redis.call("ZRANGEBYSCORE", delayed, 0, (now + 1) * 4096 - 1, "LIMIT", 0, 1000)
  if #due == 0 then
    return
  end
  redis.call("ZREM", delayed, unpack(due))
  local waiting, classes = {}, {}
  for i = 1, #due do
    local id = due[i]
    local key = prefix .. id
    local priority = redis.pcall("HGET", key, "priority") -- garbage may stand for a job
    priority = type(priority) == "string" and tonumber(priority) or 0
    if priority == 0 then
      waiting[#waiting + 1] = id
    else
      classes[#classes + 1] = priority * 0x100000000
        + redis.call("INCR", priority_counter) % 0x100000000
      classes[#classes + 1] = id
    end
    redis.call("XADD", events, "*", "event", "waiting", "jobId", id, "prev", "delayed")
    redis.pcall("HSET", key, "delay", 0)
  end
  if #waiting > 0 then
    redis.call("LPUSH", queue.target, unpack(waiting))
  end
  if #classes > 0 then
    redis.call("ZADD", prioritized, unpack(classes))
  end
  mark_base(marker, queue.blocked)
end
