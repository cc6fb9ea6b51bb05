-- update_waits(steps, signal, ended, begun): remove the id of a child job from the waits for a
-- signal, or add one, or both.
local function update_waits(steps, signal, ended, begun)
  local field, ids = "pending:" .. signal, {}
  local packed = redis.call("HGET", steps, field)
  for _, id in ipairs(packed and cmsgpack.unpack(packed) or {}) do
    if id ~= ended and id ~= begun then
      ids[#ids + 1] = id
    end
  end
  ids[#ids + 1] = begun
  if #ids > 0 then
    redis.call("HSET", steps, field, cmsgpack.pack(ids))
  elseif packed then
    redis.call("HDEL", steps, field)
  end
end
