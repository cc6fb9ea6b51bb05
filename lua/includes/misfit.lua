-- misfit(keys) -> an error that names the first queue key (from `keys`, by name) with the wrong
-- type, or nil. If there is one, a refused write is not the job's fault.
local function misfit(keys)
  -- A "number" is a string that INCR accepts.
  local types = { "meta", "hash", "wait", "list", "paused", "list", "active", "list",
    "prioritized", "zset", "priority_counter", "number", "delayed", "zset", "completed", "zset",
    "failed", "zset", "stalled", "set", "limiter", "string", "marker", "zset", "events", "stream",
    "counter", "number" }
  for i = 1, #types, 2 do
    local key, wanted = keys[types[i]], types[i + 1]
    local found = redis.pcall("TYPE", key).ok
    local fits = found == wanted
    if wanted == "number" and found == "string" then
      fits = string.find(tostring(redis.pcall("GET", key)), "^-?%d+$")
    end
    if found and found ~= "none" and not fits then
      return "WRONGTYPE " .. key .. " is a " .. found .. ", and not a " .. wanted
    end
  end
end
