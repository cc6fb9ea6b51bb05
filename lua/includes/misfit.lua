-- misfit(keys, types) -> in words, which of the keys is not of its type ("number": a string that
-- can be counted up), or nil if all are, or are not there. If one is, it is not the fault of a job
-- that something cannot be written.
local function misfit(keys, types)
  for i = 1, #types do
    local found, wanted = redis.pcall("TYPE", keys[i]).ok, types[i]
    local fits = found == wanted
    if wanted == "number" and found == "string" then
      fits = string.find(tostring(redis.pcall("GET", keys[i])), "^-?%d+$")
    end
    if found and found ~= "none" and not fits then
      return "WRONGTYPE " .. keys[i] .. " is a " .. found .. ", and not a " .. wanted
    end
  end
end
