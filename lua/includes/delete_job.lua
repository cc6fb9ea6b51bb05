-- delete_job(key): delete a job's hash and everything that hangs on it, but not its lock.
local function delete_job(key)
  return redis.call("DEL", key, key .. ":logs", key .. ":dependencies", key .. ":processed",
    key .. ":failed", key .. ":unsuccessful")
end
