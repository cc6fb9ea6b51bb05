--- @include "examine_odd"
--- @include "names_own_key"
--- @include "read_job"
--- @include "typed"

-- odd_job(prefix, id, now) -> the fields of an unusual waiting job, or false if it cannot run.
local function odd_job(prefix, id, now)
  local fields = not names_own_key(id) and typed(read_job(prefix .. id))
  if fields and (not fields[4] or string.find(id, "[\128-\255]")) then
    return examine_odd(prefix, id, fields, prefix .. "failed", prefix .. "events", now) and fields
  end
  return fields
end
