--- @include "finite"

-- queue_state(meta, active, wait or false, paused or nil) -> {paused, room, blocked, target,
-- max_events, max_starts}: what holds for the whole queue now. `room`: how many jobs more may be
-- active; `blocked`: none may; `target`: the list where jobs wait; `max_events` (false: not said):
-- how many events are kept; `max_starts` (false: any): how many jobs start per window. What is no
-- number is no limit; one and a half jobs are two, as in BullMQ.
-- While a queue is paused, BullMQ 5 parks jobs in `paused` and BullMQ 6 leaves them in `wait`. If
-- `paused` exists it is used. Else 5's way, unless the queue's version says 6 or more: its resume
-- takes both lists, while 5's resume overwrites a `wait` that it does not expect. A queue that was
-- obliterated has no version: then jobs that wait in `wait` although it is paused say 6.
local function queue_state(meta, active, wait, paused)
  local fields = redis.call("HMGET", meta, "paused", "concurrency", "opts.maxLenEvents", "max")
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
    max_events = fields[3], max_starts = max_starts and math.ceil(max_starts) or false }
end
