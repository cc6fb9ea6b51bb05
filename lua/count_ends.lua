-- count_ends: count the jobs that ended in each of the last minutes, as far as they are kept.
--
-- KEYS
--   completed   zset   jobs that are done
--   failed      zset   jobs that failed for good
-- ARGV
--   minute             the ms at which the newest minute begins
--   minutes            how many of them, at most 60
-- RETURNS
--   completed          for each minute, the newest first
--   failed             for each minute, the newest first
--   oldest             the lowest score of each set; "" if it is empty

local completed, failed = unpack(KEYS)
local minute, minutes = unpack(ARGV)

minute, minutes = tonumber(minute), math.min(tonumber(minutes), 60)

local function counts(set)
  local found, card = {}, redis.call("ZCARD", set)
  for i = 0, minutes - 1 do
    local from = minute - i * 60000
    -- 13 digits: what tostring makes of so large a number has fewer.
    found[#found + 1] = card == 0 and 0 or redis.call("ZCOUNT", set, string.format("%.0f", from),
      string.format("(%.0f", from + 60000))
  end
  return found, redis.call("ZRANGE", set, 0, 0, "WITHSCORES")[2] or ""
end

local done, first_done = counts(completed)
local broken, first_broken = counts(failed)
return { done, broken, { first_done, first_broken } }
