-- get_groups: return the state of some groups.
--
-- KEYS
--   prioritized   zset     waiting jobs with a priority, or in groups
-- ARGV
--   prefix                 queue key prefix
--   now                    ms
--   ids                    msgpack array of group ids
-- RETURNS
--   nine values per group: number of waiting jobs, number of running jobs that take a place of its
--   limit, the reason why no job may start ("paused", "running", "limited" or ""), 1 if it is
--   paused, ms when its limiter's window ends (0 if the limit is not reached), its concurrency (0
--   for no limit), its weight, the cost that its limiter allows per window, and the window's length
--   in ms (0 and 0 for no limiter)

local prioritized = unpack(KEYS)
local prefix, now, ids = unpack(ARGV)

--- @include "group_functions"

-- Jobs that another client removed or started are counted until a worker finds out. So check the
-- first ones of each group, within a limit per call.
local MOST_CHECKED = 1000
local functions, reply = group_functions(prefix, tonumber(now)), {}
local left, left_locks = MOST_CHECKED, MOST_CHECKED
for _, id in ipairs(cmsgpack.unpack(ids)) do
  local jobs, limits = functions.key_of(id, "jobs"), functions.limits_of(id)
  local waiting, first = redis.call("ZCARD", jobs), nil
  local some = redis.call("ZRANGE", jobs, 0, math.max(left, 10) - 1)
  left = left - #some
  local ranks = #some > 0 and redis.call("ZMSCORE", prioritized, unpack(some))
  for i = #some, 1, -1 do
    if ranks[i] then
      first = some[i]
    else
      waiting = waiting - 1
    end
  end
  local alive, reason, limited_until = redis.call("SCARD", functions.key_of(id, "running")), "", 0
  if alive > 0 and left_locks > 0 then
    left_locks = left_locks - alive
    alive = functions.find_running(id)
  end
  if limits.max then
    local cost = 1
    if first then
      cost = select(2, functions.read_group(redis.call("HGET", prefix .. first, "opts")))
    end
    local used = functions.window_used(id)
    if used and used > 0 and used + cost > limits.max then
      local rest = functions.window_rest(id)
      limited_until = rest > 0 and now + rest or 0
    end
  end
  if limits.paused then
    reason = "paused"
  elseif limits.concurrency and alive >= limits.concurrency then
    reason = "running"
  elseif limited_until > 0 then
    reason = "limited"
  end
  for _, value in ipairs({ waiting, alive, reason, limits.paused and 1 or 0, limited_until,
    limits.concurrency or 0, limits.weight, limits.max or 0,
    limits.max and limits.duration or 0 }) do
    reply[#reply + 1] = value
  end
end
return reply
