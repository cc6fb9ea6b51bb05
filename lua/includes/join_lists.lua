--- @include "may_shorten"

-- join_lists(newer, older, whole, size) -> 1 if more entries must be moved, else 0. Join both lists
-- into `whole` (one of the two), with `older` at the tail, where jobs are taken. Entries of the
-- shorter list are moved, up to `size`, so the order is correct between calls.
local function join_lists(newer, older, whole, size)
  local lengths = { redis.call("LLEN", newer), redis.call("LLEN", older) }
  local count = math.min(lengths[1], lengths[2], size)
  if count > 0 then
    may_shorten(lengths[1] < lengths[2] and newer or older)
  end
  for done = 0, count - 1, 5000 do
    local part = math.min(5000, count - done)
    if lengths[1] < lengths[2] then
      local ids, last = redis.call("LRANGE", newer, -part, -1), {}
      for i = 1, part do
        last[i] = ids[part + 1 - i]
      end
      redis.call("LPUSH", older, unpack(last))
      redis.call("LTRIM", newer, 0, -part - 1)
    else
      redis.call("RPUSH", newer, unpack(redis.call("LRANGE", older, 0, part - 1)))
      redis.call("LTRIM", older, part, -1)
    end
  end
  if math.min(lengths[1], lengths[2]) > count then
    return 1
  end
  local other = whole == newer and older or newer
  if redis.call("EXISTS", other) == 1 then
    redis.call("RENAME", other, whole)
  end
  return 0
end
