-- remove_indexes(list, indexes): remove the entries at `indexes`, negative (-1 is the tail),
-- deepest last. Marking entries by position avoids a search per id: one LREM in the middle of a
-- million takes 5 ms, and this takes as long for all of them.
local function remove_indexes(list, indexes)
  local count = #indexes
  if count == 0 then
    return
  end
  local deepest = indexes[count]
  if deepest == -count then
    redis.call("LTRIM", list, 0, deepest - 1)
    return
  end
  for i = 1, count do
    redis.call("LSET", list, indexes[i], "")
  end
  local is_nearer_head = -2 * deepest > redis.call("LLEN", list)
  redis.call("LREM", list, is_nearer_head and count or -count, "")
end
