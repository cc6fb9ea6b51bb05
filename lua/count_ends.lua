-- count_ends: count the jobs that finished in each of the last minutes, if they are still stored.
--
-- KEYS
--   completed   zset   completed jobs
--   failed      zset   failed jobs
-- ARGV
--   minute             start of the newest minute (or longer step), ms
--   minutes            number of steps, at most 60
--   step               length of a step, ms
-- RETURNS
--   completed          counts per step, newest first
--   failed             counts per step, newest first
--   oldest             lowest score of each set, or "" if it is empty

local completed, failed = unpack(KEYS)
local minute, minutes, step = unpack(ARGV)

minute, minutes, step = tonumber(minute), math.min(tonumber(minutes), 60), tonumber(step)

local function counts(set)
  local found, card = {}, redis.call("ZCARD", set)
  for i = 0, minutes - 1 do
    local from = minute - i * step
    -- Lua's tostring would lose digits of a 13-digit number.
    found[#found + 1] = card == 0 and 0 or redis.call("ZCOUNT", set, string.format("%.0f", from),
      string.format("(%.0f", from + step))
  end
  return found, redis.call("ZRANGE", set, 0, 0, "WITHSCORES")[2] or ""
end

local done, first_done = counts(completed)
local broken, first_broken = counts(failed)
return { done, broken, { first_done, first_broken } }
