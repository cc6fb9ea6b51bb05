-- delete_job(key): delete all keys of a job, except its lock.
local function delete_job(key)
  return redis.call("DEL", key, key .. ":logs", key .. ":dependencies", key .. ":processed",
    key .. ":failed", key .. ":unsuccessful")
end
