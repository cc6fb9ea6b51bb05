-- is_next_run(base, id, scheduler) -> whether a job is its scheduler's next run; without it,
-- the scheduler would stop. `scheduler` is the job's field `rjk`.
local function is_next_run(base, id, scheduler)
  local due = scheduler and redis.call("ZSCORE", base .. "repeat", scheduler)
  return due and id == "repeat:" .. scheduler .. ":" .. due
end
