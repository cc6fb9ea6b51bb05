--- @include "current_iteration"
--- @include "end_unstarted"
--- @include "find_place"
--- @include "is_cancelled"
--- @include "is_hash"
--- @include "names_own_key"

-- cancel_waiting(base, id, reason, now, longest, parents) -> "ended" if the job has failed now.
-- "marked" if the next worker that fetches it fails it: it is a scheduler's next run, and the
-- scheduler would stop without it, or its list is longer than `longest`. "active", "completed" or
-- "failed" if nothing was done. nil if there is no such job. For `parents`, see end_unstarted.
local function cancel_waiting(base, id, reason, now, longest, parents)
  local key = base .. id
  if names_own_key(id) or not is_hash(key) then
    return nil
  end
  local place = find_place(base, id, longest)
  if not place or place == "active" or place == "completed" or place == "failed" then
    return place
  end
  local scheduler, doom = unpack(redis.call("HMGET", key, "rjk", "defa"))
  if place == "long" or current_iteration(base, id, scheduler) then
    if not is_cancelled(doom) then
      redis.call("HSET", key, "defa", reason)
    end
    return "marked"
  end
  end_unstarted(base, id, place, reason, now, parents)
  return "ended"
end
