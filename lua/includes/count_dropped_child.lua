-- count_dropped_child(parent_key): count a child lost without a result, if taskbull added the
-- parent.
local function count_dropped_child(parent_key)
  if redis.pcall("HEXISTS", parent_key, "tbch") == 1 then
    redis.pcall("HINCRBY", parent_key, "tbdr", 1)
  end
end
