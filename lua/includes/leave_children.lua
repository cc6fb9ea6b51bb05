-- leave_children(base, id, is_kept, parents): note that the pending children of a job are to be
-- cancelled with it: the key of the set that names them is pushed to the list `parents`, that of
-- the job which was cancelled first; one that is not kept leaves them to a set of another name.
-- The first job is noted in its queue until all is done: if nobody goes on, the next sweep does.
local function leave_children(base, id, is_kept, parents)
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
  redis.call("LREM", parents, 0, pending) -- of a try that was refused halfway
  redis.call("LPUSH", parents, pending)
  redis.call("PEXPIRE", parents, LIFE)
  local noted, first = string.match(parents, "^(.*:tb:cancelling):(.*):parents$")
  redis.call("SADD", noted, first)
  redis.call("PEXPIRE", noted, LIFE)
end
