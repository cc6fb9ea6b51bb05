-- note_errors: count failed attempts by what they have in common.
--
-- KEYS
--   errors   hash   counts by fingerprint, and by `<fingerprint>:a` what it stands for
-- ARGV
--   counted         msgpack array: fingerprint, count, what it stands for, ...
--   most            how many fingerprints are kept apart
--   life            for how many ms from now all of them are kept
-- EFFECTS
--   each is counted; what is new beyond `most` is counted as `other`

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
