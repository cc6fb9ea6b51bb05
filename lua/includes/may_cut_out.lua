--- @include "may_shorten"

-- may_cut_out(list, place, entry): raise, while nothing is changed, if `cut_out` could not do its
-- work on the list, which has `entry` at `place`; see may_leave.
local function may_cut_out(list, place, entry)
  may_shorten(list)
  redis.call("LSET", list, place, entry)
  redis.call("LREM", list, 1, "")
end
