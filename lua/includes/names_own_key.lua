-- names_own_key(id) -> whether a job of this id would have its hash, or a part of it, where the
-- queue has a hash of its own. Such an id is garbage, and what it names must not be deleted.
local function names_own_key(id)
  if not string.find(id, ":", 1, true) then
    return id == "" or id == "meta" or id == "metrics"
  end
  return string.find(id, "^metrics:") or string.find(id, "^d[en]:") or string.find(id, "^tb:")
end
