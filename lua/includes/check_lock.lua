--- @include "ignore_wrongtype"

-- check_lock(lock, token) -> 0 if the token matches the lock ("0" always does), -2 if there is no
-- lock, -6 if another worker holds it.
local function check_lock(lock, token)
  if token == "0" then
    return 0
  end
  local holder = ignore_wrongtype(redis.pcall("GET", lock))
  if not holder then
    return -2
  end
  return holder == token and 0 or -6
end
