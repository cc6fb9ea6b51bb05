-- names_other_key(id) -> whether an id without job fields names a scheduler or another key that the
-- queue has or may have. It must not become a job.
local function names_other_key(id)
  local names = " wait paused active prioritized pc delayed completed failed waiting-children "
    .. "stalled stalled-check limiter marker events id repeat "
  return string.find(id, "^repeat:") or string.find(names, " " .. id .. " ", 1, true)
end
