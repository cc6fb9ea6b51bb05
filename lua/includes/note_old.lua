-- note_old(root, key, grows): note of a job in a tree that it was there before; if it gets children
-- by the tree (`grows`), also for which it waited then. If the producer breaks off, all these stay.
local function note_old(root, key, grows)
  local LIFE = 86400000 -- ms; only what is refused halfway is left for so long
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
