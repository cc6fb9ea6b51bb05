-- keep_steps(job, steps, life): let the steps of a job expire after `life` ms. If the job waits for
-- a child, they may expire later, but not sooner than before.
local function keep_steps(job, steps, life)
  if redis.call("EXISTS", job .. ":dependencies") == 0
    or redis.call("PTTL", steps) < tonumber(life) then
    redis.call("PEXPIRE", steps, life)
  end
end
