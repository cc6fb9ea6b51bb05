--- @include "ignore_wrongtype"

-- cut_field(key, field, longest) -> the first bytes of a field, or "" if it is missing or larger
-- than 64 kB, or if the key is not a hash.
local function cut_field(key, field, longest)
  local length = ignore_wrongtype(redis.pcall("HSTRLEN", key, field))
  if not length or length == 0 or length > 65536 then
    return ""
  end
  return string.sub(redis.call("HGET", key, field), 1, longest)
end
