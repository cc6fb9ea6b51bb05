--- @include "is_cancelled"

-- start_afresh(job, opts, doom): let a job that has ended run as if nobody had cancelled it, and
-- whatever time has passed. `opts` are its options as they are stored, `doom` is its field `defa`;
-- false: it has none.
local function start_afresh(job, opts, doom)
  if is_cancelled(doom) then
    redis.call("HDEL", job, "defa")
  end
  if opts and string.find(opts, "\"expires\"", 1, true) then
    redis.call("HSET", job, "tbnx", 1)
  end
end
