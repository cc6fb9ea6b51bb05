-- is_hash(key) -> whether there is a hash: false for a job that is gone, and for anything else.
local function is_hash(key)
  return redis.call("TYPE", key).ok == "hash"
end
