-- append_keys(keys, key): append all keys of a job, except its lock.
local function append_keys(keys, key)
  local last = #keys
  keys[last + 1], keys[last + 2], keys[last + 3] = key, key .. ":logs", key .. ":dependencies"
  keys[last + 4], keys[last + 5] = key .. ":processed", key .. ":failed"
  keys[last + 6], keys[last + 7] = key .. ":unsuccessful", key .. ":tb:steps"
  keys[last + 8] = key .. ":tb:items"
end
