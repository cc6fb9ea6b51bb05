-- is_hash(key) -> whether the key is a hash. False if the job is gone.
local function is_hash(key)
  return redis.call("TYPE", key).ok == "hash"
end
