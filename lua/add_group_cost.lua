-- add_group_cost: change what the jobs of a group have used of its limiter's window.
--
-- KEYS
--   meta     hash     queue settings
--   active   list     running jobs
--   marker   zset     wakes workers
-- ARGV
--   prefix            queue key prefix
--   now               ms
--   group             id of the group
--   cost              an integer; negative to give back
-- RETURNS
--   1, or 0 if the group has no limiter
-- EFFECTS
--   a positive cost begins a window if none is open

local meta, active, marker = unpack(KEYS)
local prefix, now, group, cost = unpack(ARGV)

--- @include "group_functions"
--- @include "queue_state"
--- @include "wake_worker"

local functions = group_functions(prefix, tonumber(now))
local limits, window = functions.limits_of(group), functions.key_of(group, "window")
if not limits.max then
  return 0
end
local is_back = tonumber(cost) < 0
if is_back and redis.call("EXISTS", window) == 0 then
  return 1
end
local used = redis.pcall("INCRBY", window, cost)
if type(used) == "table" or used < 0 then -- not a number, or more given back than used
  redis.call("SET", window, math.max(type(used) == "table" and cost or 0, 0), "KEEPTTL")
end
functions.bound_window(group)
if is_back and functions.release(group) then
  wake_worker(marker, queue_state(meta, active, prefix .. "wait").blocked)
end
return 1
