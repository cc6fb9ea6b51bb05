-- note_old(root, key, grows): note that a tree's job existed before the tree. With `grows` (the
-- tree adds children to it), also note the children that it already waited for. All of these stay
-- if the producer gives up.
local function note_old(root, key, grows)
  local LIFE = 86400000 -- ms, for sets that a refused call leaves behind
  local old, growing = root .. ":tb:old", root .. ":tb:growing"
  redis.call("SADD", old, key)
  if grows then
    redis.call("SUNIONSTORE", old, old, key .. ":dependencies")
    if key ~= root then
      redis.call("SADD", growing, key)
      redis.call("PEXPIRE", growing, LIFE)
    end
  end
  redis.call("PEXPIRE", old, LIFE)
end
