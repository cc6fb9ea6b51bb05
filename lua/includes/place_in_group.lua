-- place_in_group(prefix, group, weight, ids, is_front): let jobs wait in their group in order,
-- after or before its others. `weight` is nil to look it up. See group_functions.
local function place_in_group(prefix, group, weight, ids, is_front)
  local FIRST_RANK, RANKS, TIE, MOST = 2147483648, 4294967296, 1 / 1048576, 1000
  local turns, prioritized = prefix .. "tb:turns", prefix .. "prioritized"
  local jobs = prefix .. "tb:group:" .. group .. ":jobs"
  if not weight then
    local stored = redis.call("HMGET", prefix .. "tb:groups", "*" .. group, "+" .. group)
    local own = string.match(stored[2] or "", "^%S+ %S+ %S+ (%d+)")
    weight = math.max(1, tonumber(own or stored[1]) or 1)
  end
  local edge = redis.call(is_front and "ZRANGE" or "ZREVRANGE", jobs, 0, 0, "WITHSCORES")[2]
  local step, rank = 1 / weight, FIRST_RANK
  if edge then
    rank = is_front and math.max(0, edge - step * #ids) or edge + step
  else
    -- The first job of a group has its rank after the next job of every other group.
    local next_group = redis.call("ZRANGE", turns, 0, 0)[1]
    local first = next_group and redis.call("ZRANGE",
      prefix .. "tb:group:" .. next_group .. ":jobs", 0, 0, "WITHSCORES")[2]
    if first then
      local last = redis.call("ZREVRANGEBYSCORE", prioritized, string.format("(%.17g", first + 1),
        first, "WITHSCORES", "LIMIT", 0, 1)[2]
      rank = (last or first) + TIE
    end
  end
  for start = 1, #ids, MOST do
    local ranked = {}
    for i = start, math.min(start + MOST - 1, #ids) do
      ranked[#ranked + 1] = rank
      ranked[#ranked + 1] = ids[i]
      rank = math.min(rank + step, RANKS - 1)
    end
    redis.call("ZADD", prioritized, unpack(ranked))
    redis.call("ZADD", jobs, unpack(ranked))
  end
  -- A group with waiting jobs has its turn already, or is held.
  if not edge and not redis.call("ZSCORE", prefix .. "tb:held", group) then
    local last = redis.call("ZREVRANGE", turns, 0, 0, "WITHSCORES")[2]
    redis.call("ZADD", turns, "NX", math.floor(last or 0) + 1, group)
    redis.call("HSET", prefix .. "meta", "tb:groups", "1")
  end
end
