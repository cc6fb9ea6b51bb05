-- await_children(prefix, id, now, spawned, new) -> whether a job that has left `active` now waits
-- for its children. If none is pending, it runs again; the second time in a row without a new
-- child, that run fails. `spawned` is its total number of spawned children, `new` the number this
-- time.
local function await_children(prefix, id, now, spawned, new)
  local key = prefix .. id
  if new > 0 then
    redis.call("HSET", key, "tbsp", spawned)
  end
  local is_waiting = redis.call("EXISTS", key .. ":dependencies") == 1
    and redis.call("EXISTS", key .. ":unsuccessful") == 0
  if is_waiting or new > 0 then
    redis.call("HDEL", key, "tbwc")
  elseif redis.call("HINCRBY", key, "tbwc", 1) >= 2 then
    redis.call("HSET", key, "defa", "the task raised WaitForChildren twice in a row, and had no "
      .. "new child to wait for")
  end
  if is_waiting then
    redis.call("XADD", prefix .. "events", "*", "event", "waiting-children", "jobId", id,
      "prev", "active")
    redis.call("ZADD", prefix .. "waiting-children", now, id)
  end
  return is_waiting
end
