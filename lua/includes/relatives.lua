-- relatives() -> the functions by which the end of a job concerns others: its parent, and a job
-- that was deduplicated. Every function is built anew on every run, and few jobs need these: so
-- they are in here, to be built when one does.
local function relatives()
  --- @include "leave_parent"
  --- @include "tell_parent_completed"
  --- @include "tell_parent_failed"
  --- @include "end_deduplication"
  --- @include "add_kept_last"
  return { leave_parent = leave_parent, tell_completed = tell_parent_completed,
    tell_failed = tell_parent_failed, end_deduplication = end_deduplication,
    add_kept_last = add_kept_last }
end
