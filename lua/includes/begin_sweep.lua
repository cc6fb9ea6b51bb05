--- @include "event_limit"

-- begin_sweep(stalled, suspects, meta, events): set apart the ids that the last sweep marked. What
-- is no set is nothing of ours, and would keep all sweeps from being made.
local function begin_sweep(stalled, suspects, meta, events)
  for _, marks in ipairs({ stalled, suspects }) do
    local kind = redis.call("TYPE", marks).ok
    if kind ~= "set" and kind ~= "none" then
      redis.call("UNLINK", marks)
    end
  end
  redis.call("XTRIM", events, "MAXLEN", "~", event_limit(meta))
  if redis.call("EXISTS", suspects) == 1 then -- of a sweep that was broken off
    redis.call("SUNIONSTORE", suspects, suspects, stalled)
    redis.call("UNLINK", stalled)
  elseif redis.call("EXISTS", stalled) == 1 then
    redis.call("RENAME", stalled, suspects)
  end
  redis.call("PEXPIRE", suspects, 3600000) -- if nobody ever sweeps again
end
