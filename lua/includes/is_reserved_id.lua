-- is_reserved_id(id) -> whether a job with this id would use the key of one of the queue's own
-- hashes. Such an id is invalid, and the key must not be deleted.
local function is_reserved_id(id)
  if not string.find(id, ":", 1, true) then
    return id == "" or id == "meta" or id == "metrics"
  end
  return string.find(id, "^metrics:") or string.find(id, "^d[en]:") or string.find(id, "^tb:")
end
