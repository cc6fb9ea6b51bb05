-- relatives() -> the functions that pass a finished job on to its parent and to deduplicated jobs.
-- Each run builds every function again and few jobs need these, so they are built on demand.
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
