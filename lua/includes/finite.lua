-- finite(raw) -> the stored number, clamped to the exact integers of a double, or nil if it is not
-- a number. NaN gives nil, because no command accepts it and every comparison with it is false.
-- Lua 5.4, in Dragonfly, does not read "inf".
local function finite(raw)
  local number = tonumber(raw) or raw == "inf" and math.huge or raw == "-inf" and -math.huge
  if not number or number ~= number then
    return nil
  end
  return math.max(-9007199254740992, math.min(number, 9007199254740992))
end
