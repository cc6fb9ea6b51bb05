-- record_errors: count failed attempts by error fingerprint.
--
-- KEYS
--   errors   hash   counts by fingerprint, and its description by `<fingerprint>:a`
-- ARGV
--   counted         msgpack array: fingerprint, count, description, ...
--   most            maximum number of fingerprints to store
--   life            ms from now to keep them all
-- EFFECTS
--   all are counted; new fingerprints beyond `most` are counted as `other`

local errors = unpack(KEYS)
local counted, most, life = unpack(ARGV)

counted = cmsgpack.unpack(counted)
for i = 1, #counted, 3 do
  local fingerprint, count, about = counted[i], counted[i + 1], counted[i + 2]
  if redis.call("HEXISTS", errors, fingerprint) == 0 then
    if redis.call("HLEN", errors) >= 2 * most then
      fingerprint = "other"
    else
      redis.call("HSET", errors, fingerprint .. ":a", about)
    end
  end
  redis.call("HINCRBY", errors, fingerprint, count)
end
redis.call("PEXPIRE", errors, life)
return 1
