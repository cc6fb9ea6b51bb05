-- cut_tail(list, ids) -> whether the list ended with these ids, in any order. If so, they are cut
-- off, at less than a third of the cost of removing them one by one.
local function cut_tail(list, ids)
  local count, is_same = #ids, true
  local tail = redis.pcall("LRANGE", list, string.format("%d", -count), "-1")
  for i = 1, count do -- the first job fetched usually finishes first
    is_same = is_same and tail[count + 1 - i] == ids[i]
  end
  if not is_same then
    local there = {}
    for i = 1, #tail do
      there[tail[i]] = true
    end
    for i = 1, count do
      if not there[ids[i]] then
        return false
      end
      there[ids[i]] = false -- match a repeated id only once
    end
  end
  return redis.pcall("LTRIM", list, "0", string.format("%d", -count - 1)).ok ~= nil
end
