-- remove_at(index, count, numbers, ...) -> `numbers` (nil for 1 to `count`) without the entry at
-- `index`, which is also removed from each of the other lists.
local function remove_at(index, count, numbers, ...)
  if not numbers then
    numbers = {}
    for i = 1, count do
      numbers[i] = i
    end
  end
  for _, list in ipairs({ numbers, ... }) do
    table.remove(list, index)
  end
  return numbers
end
