-- is_denied(problem) -> whether Redis refused a command because this user may not run it, as worded
-- by any Redis version. A command that was renamed away counts as well.
local function is_denied(problem)
  return string.find(problem, "user executing the script", 1, true)
    or string.find(problem, "ACL failure", 1, true)
    or string.find(problem, "NOPERM", 1, true)
    or string.find(problem, "Unknown [%a ]*command")
end
