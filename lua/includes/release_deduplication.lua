-- release_deduplication(base, id, name): free the deduplication id `name` (may be false) if the
-- removed job owns it.
local function release_deduplication(base, id, name)
  if name and redis.pcall("GET", base .. "de:" .. name) == id then
    redis.call("DEL", base .. "de:" .. name, base .. "dn:" .. name)
  end
end
