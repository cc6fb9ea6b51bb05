-- stalled_places(prefix, ids, position, suspects) -> the positions of stalled jobs in `active`,
-- their ids (oldest first), and the ids of the others. `ids` is a slice of the list that ends
-- `position` entries before its tail.
local function stalled_places(prefix, ids, position, suspects)
  local places, gone, alive = {}, {}, {}
  if #ids == 0 then
    return places, gone, alive
  end
  local locks, seen = {}, {}
  for i = 1, #ids do
    locks[i] = prefix .. ids[i] .. ":lock"
  end
  local suspected = redis.call("SMISMEMBER", suspects, unpack(ids))
  local tokens = redis.call("MGET", unpack(locks))
  for i = #ids, 1, -1 do
    local id = ids[i]
    if tokens[i] or suspected[i] == 0 then
      alive[#alive + 1] = id
    else
      places[#places + 1] = i - #ids - 1 - position
      if not seen[id] then
        gone[#gone + 1] = id
        seen[id] = true
      end
    end
  end
  return places, gone, alive
end
