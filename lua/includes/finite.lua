-- finite(raw) -> the number that somebody wrote, within what a double holds exactly; nil for what
-- is none. NaN is none: it is neither less nor more than anything, and no command takes it.
local function finite(raw)
  local number = tonumber(raw)
  if not number or number ~= number then
    return nil
  end
  return math.max(-9007199254740992, math.min(number, 9007199254740992))
end
