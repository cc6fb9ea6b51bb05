-- await_children(prefix, id, now, spawned, new) -> whether a job that has left `active` waits for
-- its children now. If none is pending it is to run again, and the second time in a row without a
-- new child it fails then. `spawned` is how many it has spawned in all, `new` how many this time.
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
