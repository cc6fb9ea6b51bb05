-- priority_score(priority, pc) -> the score at the back of a priority.
local function priority_score(priority, pc)
  return priority * 0x100000000 + redis.call("INCR", pc) % 0x100000000
end
