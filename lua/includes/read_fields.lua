-- read_fields(key, fields, room) -> {values, sizes}, room: some fields of a job; nil, room if the
-- key is not a hash. `fields` are name, most, ...: a value is cut after `most` bytes; with a
-- negative `most`, it is whole, or "" if larger. A value over 64 kB, or over the remaining `room`
-- for large ones, is also "". Its size is still returned.
local function read_fields(key, fields, room)
  if redis.call("TYPE", key).ok ~= "hash" then
    return nil, room
  end
  local values, sizes, asked, places = {}, {}, {}, {}
  for i = 1, #fields, 2 do
    local place, most = (i + 1) / 2, fields[i + 1]
    local size = redis.call("HSTRLEN", key, fields[i])
    values[place], sizes[place] = "", size
    local wanted = size > 0 and (most > 0 or size <= -most)
    if wanted and size > 300 then
      wanted = size <= 65536 and size <= room
      room = wanted and room - size or room
    end
    if wanted then
      asked[#asked + 1] = fields[i]
      places[#places + 1] = place
    end
  end
  if #asked > 0 then
    local found = redis.call("HMGET", key, unpack(asked))
    for i = 1, #places do
      local most = fields[places[i] * 2]
      values[places[i]] = most > 0 and string.sub(found[i], 1, most) or found[i]
    end
  end
  return { values, sizes }, room
end
