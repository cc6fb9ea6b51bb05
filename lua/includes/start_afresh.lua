--- @include "is_cancelled"

-- start_afresh(job, opts): let a job that has ended run as if nobody had cancelled it, and whatever
-- time has passed. `opts` are its options as they are stored, or false.
local function start_afresh(job, opts)
  if is_cancelled(redis.call("HGET", job, "defa")) then
    redis.call("HDEL", job, "defa")
  end
  if opts and string.find(opts, "\"expires\"", 1, true) then
    redis.call("HSET", job, "tbnx", 1)
  end
end
