--- @include "typed"

-- list_place(list, id, deepest, prefix, timestamp) -> the place of an id, counted from the tail,
-- and whether it was seen there; nil if it is not in the list. Of a long list only the `deepest`
-- members of each end are searched: in between its place is guessed by the timestamps of others.
local function list_place(list, id, deepest, prefix, timestamp)
  local length = redis.call("LLEN", list)
  local found = redis.call("LPOS", list, id, "RANK", -1, "MAXLEN", deepest)
  if not found and length > deepest then
    found = redis.call("LPOS", list, id, "MAXLEN", deepest)
  end
  if found then
    return length - 1 - found, true
  end
  if length <= 2 * deepest then
    return nil, true
  end
  timestamp = tonumber(timestamp) or 0
  local first, last = deepest, length - deepest
  while first < last do
    local middle = math.floor((first + last) / 2)
    local other = redis.call("LRANGE", list, -1 - middle, -1 - middle)[1]
    local reply = typed(redis.pcall("HGET", prefix .. other, "timestamp"))
    if (reply and tonumber(reply) or 0) < timestamp then
      first = middle + 1
    else
      last = middle
    end
  end
  local start = math.max(first - 1000, 0)
  local near = redis.call("LRANGE", list, -start - 2000, -start - 1)
  for i = 1, #near do
    if near[i] == id then
      return start + #near - i, true
    end
  end
  return first, false
end
