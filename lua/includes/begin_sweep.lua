--- @include "event_limit"

-- begin_sweep(stalled, suspects, meta, events): set aside the ids that the last sweep marked. A key
-- of another type is deleted, because it would block every sweep.
local function begin_sweep(stalled, suspects, meta, events)
  for _, marks in ipairs({ stalled, suspects }) do
    local kind = redis.call("TYPE", marks).ok
    if kind ~= "set" and kind ~= "none" then
      redis.call("UNLINK", marks)
    end
  end
  redis.call("XTRIM", events, "MAXLEN", "~", event_limit(meta))
  if redis.call("EXISTS", suspects) == 1 then -- from an interrupted sweep
    redis.call("SUNIONSTORE", suspects, suspects, stalled)
    redis.call("UNLINK", stalled)
  elseif redis.call("EXISTS", stalled) == 1 then
    redis.call("RENAME", stalled, suspects)
  end
  redis.call("PEXPIRE", suspects, 3600000) -- in case no other sweep follows
end
