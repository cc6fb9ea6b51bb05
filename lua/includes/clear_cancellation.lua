--- @include "is_cancelled"

-- clear_cancellation(job, opts, deferred_failure): let a finished job run again even if it was
-- cancelled or has expired. `opts` are its stored options; the last argument is its field `defa` or
-- false.
local function clear_cancellation(job, opts, deferred_failure)
  if is_cancelled(deferred_failure) then
    redis.call("HDEL", job, "defa")
  end
  if opts and string.find(opts, "\"expires\"", 1, true) then
    redis.call("HSET", job, "tbnx", 1)
  end
end
