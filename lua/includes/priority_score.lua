-- priority_score(priority, pc) -> the score of a job at the back of its class of priority.
local function priority_score(priority, pc)
  return priority * 0x100000000 + redis.call("INCR", pc) % 0x100000000
end
