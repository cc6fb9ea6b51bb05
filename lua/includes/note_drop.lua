-- note_drop(parent_key): note in a parent of ours that it has lost a child without a result.
local function note_drop(parent_key)
  if redis.pcall("HEXISTS", parent_key, "tbch") == 1 then
    redis.pcall("HINCRBY", parent_key, "tbdr", 1)
  end
end
