-- end_stream(key, run, state, reason): write the last entry of a job's stream, and let the stream
-- expire. `run` is the job's field `tbst`, or false if the job has no stream. A refused write must
-- not affect the job.
local function end_stream(key, run, state, reason)
  local LAST = "-18446744073709551615" -- the highest number in a run
  local number, life, limit = string.match(run or "", "^(%d+) (%d+) (%d+) ")
  if not number then
    return
  end
  local items = key .. ":tb:items"
  if reason then
    redis.pcall("XADD", items, "MAXLEN", "=", limit, number .. LAST, "event", "end",
      "state", state, "reason", reason)
  else
    redis.pcall("XADD", items, "MAXLEN", "=", limit, number .. LAST, "event", "end",
      "state", state)
  end
  redis.pcall("PEXPIRE", items, life)
end
