-- queue_child_cancels(base, id, is_kept, parents): mark the pending children of a job to be
-- cancelled with it. The key of their set is pushed to `parents`, the list of the job that was
-- cancelled first. A job that is not kept leaves them in a set with another name. The first job is
-- noted in its queue until all are done, so that the next sweep can continue an interrupted cancel.
local function queue_child_cancels(base, id, is_kept, parents)
  local LIFE = 86400000
  local dependencies = base .. id .. ":dependencies"
  if redis.call("EXISTS", dependencies) == 0 then
    return
  end
  local pending = dependencies
  if not is_kept then
    pending = base .. "tb:cancelling:" .. id .. ":left"
    redis.call("SUNIONSTORE", pending, dependencies)
    redis.call("PEXPIRE", pending, LIFE)
  end
  redis.call("LREM", parents, 0, pending) -- from an attempt that was refused halfway
  redis.call("LPUSH", parents, pending)
  redis.call("PEXPIRE", parents, LIFE)
  local noted, first = string.match(parents, "^(.*:tb:cancelling):(.*):parents$")
  redis.call("SADD", noted, first)
  redis.call("PEXPIRE", noted, LIFE)
end
