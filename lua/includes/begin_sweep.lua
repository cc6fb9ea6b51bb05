--- @include "event_limit"

-- begin_sweep(stalled, suspects, meta, events): set apart the ids that the last sweep marked.
local function begin_sweep(stalled, suspects, meta, events)
  redis.call("XTRIM", events, "MAXLEN", "~", event_limit(meta))
  if redis.call("EXISTS", suspects) == 1 then -- of a sweep that was broken off
    redis.call("SUNIONSTORE", suspects, suspects, stalled)
    redis.call("UNLINK", stalled)
  elseif redis.call("EXISTS", stalled) == 1 then
    redis.call("RENAME", stalled, suspects)
  end
  redis.call("PEXPIRE", suspects, 3600000) -- if nobody ever sweeps again
end
