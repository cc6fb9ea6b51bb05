--- @include "finite"

-- add_delay_marker(marker, delayed): notify idle workers when the earliest delayed job is due.
local function add_delay_marker(marker, delayed)
  local earliest = redis.call("ZRANGE", delayed, 0, 0, "WITHSCORES")
  if earliest[2] then
    redis.call("ZADD", marker, finite(earliest[2]) / 4096, "1")
  end
end
