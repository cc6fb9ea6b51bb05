-- is_denied(problem) -> whether Redis refused a command because the user may not run it, by the
-- words of all its versions; a command that is renamed away is the same to us.
local function is_denied(problem)
  return string.find(problem, "user executing the script", 1, true)
    or string.find(problem, "ACL failure", 1, true)
    or string.find(problem, "NOPERM", 1, true)
    or string.find(problem, "Unknown [%a ]*command")
end
