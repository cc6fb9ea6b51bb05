-- preview_field: read the first or last bytes of a job's large field.
--
-- KEYS
--   job        hash   the job
-- ARGV
--   field
--   most              bytes to read
--   from_end          "1" for the last bytes, "0" for the first
--   largest           bytes above which nothing is read, because cutting copies the whole value
-- RETURNS
--   size              of the field, or 0 if it is missing or the key is not a hash
--   piece             "" if the field is too large

local job = unpack(KEYS)
local field, most, from_end, largest = unpack(ARGV)

--- @include "ignore_wrongtype"

local size = ignore_wrongtype(redis.pcall("HSTRLEN", job, field)) or 0
if size == 0 or size > tonumber(largest) then
  return { size, "" }
end
local value = redis.call("HGET", job, field)
most = tonumber(most)
return { size, from_end == "1" and string.sub(value, -most) or string.sub(value, 1, most) }
