-- restore_active(active, completed, ids, first): move jobs whose outcome was refused back from
-- `completed` to `active`, from index `first` of `ids`.
local function restore_active(active, completed, ids, first)
  for i = first, #ids do
    redis.pcall("ZREM", completed, ids[i])
    if type(redis.pcall("LPUSH", active, ids[i])) == "table" then
      redis.pcall("RPUSH", active, ids[i])
    end
  end
end
