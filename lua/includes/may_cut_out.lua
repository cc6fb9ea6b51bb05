--- @include "may_shorten"

-- may_cut_out(list, place, entry): raise, before anything is changed, if `cut_out` would be
-- refused. The list has `entry` at `place`. See may_leave.
local function may_cut_out(list, place, entry)
  may_shorten(list)
  redis.call("LSET", list, place, entry)
  redis.call("LREM", list, 1, "")
end
