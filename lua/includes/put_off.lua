--- @include "delayed_score"
--- @include "refusal"
--- @include "stay_waiting"

-- put_off(delayed, suspects, due, step): delay jobs that are still in their waiting place, the
-- first until `due` ms and each further one by `step` ms more. If that is refused, none is delayed
-- and it raises.
local function put_off(delayed, suspects, due, step)
  for i = 1, #suspects do
    local score = delayed_score(delayed, due + (i - 1) * step)
    if refusal(redis.pcall("ZADD", delayed, score, suspects[i])) then
      stay_waiting("", {}, delayed, suspects, "ZADD", delayed, score, suspects[i])
    end
  end
end
