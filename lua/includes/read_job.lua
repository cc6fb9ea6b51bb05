-- read_job(key) -> the fields that a worker needs, in the order of RUN_FIELDS, or an error.
local function read_job(key)
  return redis.pcall("HMGET", key, "name", "data", "opts", "timestamp", "delay", "priority", "atm",
    "ats", "defa", "stc", "rjk", "deid", "parentKey", "stacktrace", "attemptsMade", "tbpd",
    "tbnx")
end
