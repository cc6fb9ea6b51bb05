-- peek_field: read one end of a field of a job that is too large to be read whole.
--
-- KEYS
--   job        hash   the job
-- ARGV
--   field
--   most              bytes that are wanted of it
--   from_end          "1": its last bytes, "0": its first
--   largest           bytes above which nothing is read: to cut, all of it has to be copied
-- RETURNS
--   size              of the field; 0 if there is none, or if the key is not a hash
--   piece             "" if it is too large

local job = unpack(KEYS)
local field, most, from_end, largest = unpack(ARGV)

--- @include "typed"

local size = typed(redis.pcall("HSTRLEN", job, field)) or 0
if size == 0 or size > tonumber(largest) then
  return { size, "" }
end
local value = redis.call("HGET", job, field)
most = tonumber(most)
return { size, from_end == "1" and string.sub(value, -most) or string.sub(value, 1, most) }
