--- @include "ignore_wrongtype"

-- list_place(list, id, deepest, prefix, timestamp) -> the index of an id, counted from the tail,
-- and whether it was seen there; nil if it is not in the list. A long list is first searched near
-- the position suggested by other jobs' timestamps, then `deepest` entries from each end. If that
-- fails, the position is a guess.
local function list_place(list, id, deepest, prefix, timestamp)
  local length = redis.call("LLEN", list)
  local is_long, first, last = length > 2 * deepest, 0, length
  timestamp = tonumber(timestamp) or 0

  -- Each step walks the list from its end, so take as few as possible.
  local function narrow(width)
    while last - first > width do
      local middle = math.floor((first + last) / 2)
      local other = redis.call("LRANGE", list, -1 - middle, -1 - middle)[1]
      local reply = ignore_wrongtype(redis.pcall("HGET", prefix .. other, "timestamp"))
      if (reply and tonumber(reply) or 0) < timestamp then
        first = middle + 1
      else
        last = middle
      end
    end
  end

  if is_long then
    narrow(500)
    local start = math.max(first - 500, 0)
    local near = redis.call("LRANGE", list, -start - 2000, -start - 1)
    for i = 1, #near do
      if near[i] == id then
        return start + #near - i, true
      end
    end
  end
  local found = redis.call("LPOS", list, id, "RANK", -1, "MAXLEN", deepest)
  if not found and length > deepest then
    found = redis.call("LPOS", list, id, "MAXLEN", deepest)
  end
  if found then
    return length - 1 - found, true
  end
  if not is_long then
    return nil, true
  end
  narrow(0)
  return math.min(math.max(first, deepest), length - deepest), false
end
