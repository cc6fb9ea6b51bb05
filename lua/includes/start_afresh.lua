--- @include "is_cancelled"

-- start_afresh(job, opts, doom): let a finished job run again even if it was cancelled or has
-- expired. `opts` are its stored options; the last argument is its field `defa` or false.
local function start_afresh(job, opts, doom)
  if is_cancelled(doom) then
    redis.call("HDEL", job, "defa")
  end
  if opts and string.find(opts, "\"expires\"", 1, true) then
    redis.call("HSET", job, "tbnx", 1)
  end
end
