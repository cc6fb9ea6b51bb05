-- leave_out(place, count, numbers, ...) -> `numbers` (nil: 1 to `count`) without that at the place;
-- what is there in each of the other lists is removed, too.
local function leave_out(place, count, numbers, ...)
  if not numbers then
    numbers = {}
    for i = 1, count do
      numbers[i] = i
    end
  end
  for _, list in ipairs({ numbers, ... }) do
    table.remove(list, place)
  end
  return numbers
end
