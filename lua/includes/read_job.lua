-- read_job(key): give the fields that a worker needs, in its own order (RUN_FIELDS), or an error.
-- A job that has only the six of a plain new one has none of the others, and most that are taken
-- are such.
local function read_job(key)
  local size = redis.pcall("HLEN", key)
  if size == 6 then
    return redis.call("HMGET", key, "name", "data", "opts", "timestamp", "delay", "priority",
      "atm", "ats")
  end
  return redis.pcall("HMGET", key, "name", "data", "opts", "timestamp", "delay", "priority", "atm",
    "ats", "defa", "stc", "rjk", "deid", "parentKey", "stacktrace", "attemptsMade", "tbpd")
end
