-- end_deduplication(prefix, id, name): release the deduplication id `name` when its owner finishes.
-- An id with a time to live expires instead.
local function end_deduplication(prefix, id, name)
  local key = prefix .. "de:" .. name
  if redis.call("PTTL", key) == -1 and redis.pcall("GET", key) == id then
    redis.call("DEL", key)
  end
end
