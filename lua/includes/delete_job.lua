-- delete_job(key, keeps_items): delete all keys of a job, except its lock. With `keeps_items`, the
-- stream of its items stays until it expires, because readers may not have reached its end.
local function delete_job(key, keeps_items)
  return redis.call("DEL", key, key .. ":logs", key .. ":dependencies", key .. ":processed",
    key .. ":failed", key .. ":unsuccessful", key .. ":tb:steps",
    keeps_items and key or key .. ":tb:items")
end
