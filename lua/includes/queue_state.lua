--- @include "finite"

-- queue_state(meta, active, wait or false, paused or nil, is_fetch) -> {paused, room, blocked,
-- target, max_events, max_starts, has_groups}. `room` is how many more jobs may be active,
-- `blocked` whether none may, `target` the list where jobs wait. `max_events` (or false) is how
-- many events to keep, `max_starts` (or false) how many jobs may start per window, `has_groups`
-- is set if jobs wait in groups. It is read only with `is_fetch`, because it costs 1,500
-- instructions. A limit that is not a number is ignored; fractions are rounded up, as in BullMQ.
-- While a queue is paused, BullMQ 5 moves jobs to `paused` and BullMQ 6 leaves them in `wait`. If
-- `paused` exists, it is used. Otherwise, do as BullMQ 5 unless the queue's version is 6 or later:
-- BullMQ 6 resumes both lists, but BullMQ 5 overwrites an unexpected `wait`. An obliterated queue
-- has no version; jobs in its `wait` while it is paused mean BullMQ 6.
local function queue_state(meta, active, wait, paused, is_fetch)
  local fields = is_fetch and redis.call("HMGET", meta, "paused", "concurrency",
    "opts.maxLenEvents", "max", "tb:groups")
    or redis.call("HMGET", meta, "paused", "concurrency", "opts.maxLenEvents", "max")
  local is_paused = fields[1] ~= false
  local target = wait
  if is_paused then
    paused = paused or string.gsub(meta, "meta$", "paused")
    local version = redis.call("HGET", meta, "version")
    local major = tonumber(string.match(version or "", ":(%d+)%.") or 5)
    if not version and wait and redis.call("EXISTS", wait) == 1 then
      major = 6
    end
    if major < 6 or redis.call("EXISTS", paused) == 1 then
      target = paused
    end
  end
  local room, limit, max_starts = math.huge, finite(fields[2]), finite(fields[4])
  if limit then
    room = math.ceil(limit) - redis.call("LLEN", active)
  end
  return { paused = is_paused, room = room, blocked = is_paused or room <= 0, target = target,
    max_events = fields[3], max_starts = max_starts and math.ceil(max_starts) or false,
    has_groups = fields[5] }
end
