-- count_ends: count the jobs that finished in each of the last minutes, if they are still stored.
--
-- KEYS
--   completed   zset   completed jobs
--   failed      zset   failed jobs
-- ARGV
--   minute             start of the newest minute, ms
--   minutes            number of minutes, at most 60
-- RETURNS
--   completed          counts per minute, newest first
--   failed             counts per minute, newest first
--   oldest             lowest score of each set, or "" if it is empty

local completed, failed = unpack(KEYS)
local minute, minutes = unpack(ARGV)

minute, minutes = tonumber(minute), math.min(tonumber(minutes), 60)

local function counts(set)
  local found, card = {}, redis.call("ZCARD", set)
  for i = 0, minutes - 1 do
    local from = minute - i * 60000
    -- Lua's tostring would lose digits of a 13-digit number.
    found[#found + 1] = card == 0 and 0 or redis.call("ZCOUNT", set, string.format("%.0f", from),
      string.format("(%.0f", from + 60000))
  end
  return found, redis.call("ZRANGE", set, 0, 0, "WITHSCORES")[2] or ""
end

local done, first_done = counts(completed)
local broken, first_broken = counts(failed)
return { done, broken, { first_done, first_broken } }
