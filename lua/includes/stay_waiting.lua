-- stay_waiting(active, ids, ...): take ids out of `active` again that could not leave where they
-- wait, by the command that was refused; it raises.
local function stay_waiting(active, ids, ...)
  for i = 1, #ids do
    redis.pcall("LREM", active, 1, ids[i])
  end
  redis.call(...)
end
