-- find_place(base, id, longest) -> the name of the set or list that holds a job, or nil. Waiting
-- lists longer than `longest` are not searched: "long" means that the job may be in one of them.
local function find_place(base, id, longest)
  local sets = { "completed", "failed", "delayed", "prioritized", "waiting-children" }
  for i = 1, #sets do
    if redis.call("ZSCORE", base .. sets[i], id) then
      return sets[i]
    end
  end
  if redis.call("LPOS", base .. "active", id) then
    return "active"
  end
  local lists, is_long = { "wait", "paused" }, false
  for i = 1, #lists do
    local length = redis.call("LLEN", base .. lists[i])
    if length > longest then
      is_long = true
    elseif length > 0 and redis.call("LPOS", base .. lists[i], id) then
      return lists[i]
    end
  end
  return is_long and "long" or nil
end
