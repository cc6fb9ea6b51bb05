--- @include "finite"

-- failed_bounds(raw) -> {count, age in s, limit}: bounds for keeping a failed job, from its stored
-- options. Each is -1 for no bound. Invalid options mean no bounds.
local function failed_bounds(raw)
  local readable, opts = pcall(cjson.decode, raw or "")
  local keep = readable and type(opts) == "table" and opts.removeOnFail
  if keep == true then
    return { 0, -1, -1 }
  end
  if type(keep) == "number" then
    keep = { count = keep }
  end
  if type(keep) ~= "table" then
    return { -1, -1, -1 }
  end
  local count, age, limit = finite(keep.count), finite(keep.age), finite(keep.limit)
  if count and count < 0 or age and age < 0 or limit and limit < 1 then
    return { -1, -1, -1 }
  end
  return { count and math.floor(count) or -1, age and math.ceil(age) or -1,
    limit and math.floor(limit) or -1 }
end
