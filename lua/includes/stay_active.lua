-- stay_active(active, completed, ids, first): let the jobs from the place `first` of `ids` on be
-- active again, whose end was refused, and not be completed.
local function stay_active(active, completed, ids, first)
  for i = first, #ids do
    redis.pcall("ZREM", completed, ids[i])
    if type(redis.pcall("LPUSH", active, ids[i])) == "table" then
      redis.pcall("RPUSH", active, ids[i])
    end
  end
end
