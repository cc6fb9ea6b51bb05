-- end_deduplication(prefix, id, name): let the deduplication id `name` go when its owner has ended;
-- one with a time to live is left to expire.
local function end_deduplication(prefix, id, name)
  local key = prefix .. "de:" .. name
  if redis.call("PTTL", key) == -1 and redis.pcall("GET", key) == id then
    redis.call("DEL", key)
  end
end
