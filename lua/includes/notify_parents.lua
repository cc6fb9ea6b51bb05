--- @include "refusal"

-- notify_parents(keys, parents, values) -> last, refused: store results of completed children in
-- their parents, one parent at a time. `parents` has each child's parent key or false. `last` (or
-- nil) is the set of children that are then their parent's last pending ones:
-- notify_parent_completed handles those later. `refused` has the indexes of children whose parent
-- could not be updated, in descending order.
local function notify_parents(keys, parents, values)
  local families, known = {}, {}
  for index = 1, #keys do
    local parent_key = parents[index]
    local family = known[parent_key]
    if parent_key and not family then
      family = { parent = parent_key, keys = {}, indexes = {} }
      families[#families + 1], known[parent_key] = family, family
    end
    if family then
      local count = #family.keys + 1
      family.keys[count], family.indexes[count] = keys[index], index
    end
  end

  local last, refused = nil, {}
  for f = 1, #families do
    local family = families[f]
    local dependencies = family.parent .. ":dependencies"
    local awaited = redis.pcall("SMISMEMBER", dependencies, unpack(family.keys))
    local pending = redis.pcall("SCARD", dependencies)
    local problem, notified, results = awaited.err or refusal(pending), {}, {}
    for i = 1, problem and 0 or #awaited do
      if awaited[i] == 1 then
        local key = family.keys[i]
        notified[#notified + 1] = key
        results[#results + 1], results[#results + 2] = key, values[family.indexes[i]]
      end
    end
    if not problem and #notified == pending and pending > 0 then
      last = last or {}
      last[notified[pending]] = true
      notified[pending], results[2 * pending - 1], results[2 * pending] = nil, nil, nil
    end
    if not problem and #notified > 0 then
      -- A child stays pending until its result is stored.
      problem = refusal(redis.pcall("HSET", family.parent .. ":processed", unpack(results)))
        or refusal(redis.pcall("SREM", dependencies, unpack(notified)))
    end
    for i = 1, problem and #family.indexes or 0 do
      refused[#refused + 1] = family.indexes[i]
    end
  end
  if #refused > 1 then
    table.sort(refused, function(a, b) return a > b end)
  end
  return last, refused
end
