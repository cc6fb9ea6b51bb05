--- @include "is_reserved_id"
--- @include "read_job"
--- @include "ignore_wrongtype"

-- read_unusual_job(prefix, id, now) -> the fields of a waiting job that has other fields than a new
-- one, or false if it cannot run. A job whose id is not UTF-8 fails here, because its id cannot be
-- sent to a worker.
local function read_unusual_job(prefix, id, now)
  local key = prefix .. id
  local fields = not is_reserved_id(id) and ignore_wrongtype(read_job(key))
  if not fields or fields[4] and not string.find(id, "[\128-\255]") then
    return fields
  end
  local names = " wait paused active prioritized pc delayed completed failed waiting-children "
    .. "stalled stalled-check limiter marker events id repeat "
  if not fields[4]
    and (string.find(id, "^repeat:") or string.find(names, " " .. id .. " ", 1, true)) then
    return false -- a scheduler, or another key that the queue has or may have
  end

  local tail, position = "[\128-\191]", 1
  local forms = {
    "^[%z\1-\127]+",
    "^[\194-\223]" .. tail,
    "^\224[\160-\191]" .. tail,
    "^[\225-\236\238\239]" .. tail .. tail,
    "^\237[\128-\159]" .. tail,
    "^\240[\144-\191]" .. tail .. tail,
    "^[\241-\243]" .. tail .. tail .. tail,
    "^\244[\128-\143]" .. tail .. tail,
  }
  while position <= #id do
    local last
    for i = 1, #forms do
      last = last or select(2, string.find(id, forms[i], position))
    end
    if not last then
      local reason = "its id is not UTF-8"
      redis.call("HSET", key, "failedReason", reason, "finishedOn", now)
      redis.call("ZADD", prefix .. "failed", now, id)
      redis.call("XADD", prefix .. "events", "*", "event", "failed", "jobId", id,
        "failedReason", reason, "prev", "waiting")
      return false
    end
    position = last + 1
  end
  return fields
end
