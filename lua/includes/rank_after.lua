-- rank_after(set, score, id, newest_first) -> the rank, from 0 in page order, of the first member
-- after this score and id. The member with this score and id may be gone.
local function rank_after(set, score, id, newest_first)
  -- Redis orders members with equal scores by bytes; Lua's `<` depends on the locale.
  local function before(one, other)
    for i = 1, math.min(#one, #other) do
      local a, b = string.byte(one, i), string.byte(other, i)
      if a ~= b then
        return a < b
      end
    end
    return #one < #other
  end

  local low, range = "-inf", "ZRANGE"
  local high = "(" .. score
  if newest_first then
    low, high, range = "(" .. score, "+inf", "ZREVRANGE"
  end
  local first = redis.call("ZCOUNT", set, low, high)
  local last = first + redis.call("ZCOUNT", set, score, score)
  while first < last do
    local middle = math.floor((first + last) / 2)
    local member = redis.call(range, set, middle, middle)[1]
    local is_after = before(id, member)
    if newest_first then
      is_after = before(member, id)
    end
    if is_after then
      last = middle
    else
      first = middle + 1
    end
  end
  return first
end
