--- @include "typed"

-- holds_lock(lock, token) -> 0 if the token opens the lock ("0" opens any), -2 if there is none,
-- -6 if it is another's.
local function holds_lock(lock, token)
  if token == "0" then
    return 0
  end
  local holder = typed(redis.pcall("GET", lock))
  if not holder then
    return -2
  end
  return holder == token and 0 or -6
end
