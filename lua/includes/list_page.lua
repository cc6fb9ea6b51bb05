-- list_page(list, start, most) -> up to `most` ids from index `start`, counted from the tail: the
-- next to run is first.
local function list_page(list, start, most)
  local some, ids = redis.call("LRANGE", list, -start - most, -start - 1), {}
  for i = #some, 1, -1 do
    ids[#ids + 1] = some[i]
  end
  return ids
end
