-- preview_steps: read the steps and waits of a job without their results.
--
-- KEYS
--   job       hash   the job
--   steps     hash   the job's steps
-- ARGV
--   most             number of fields above which nothing is read
--   budget           bytes of large records to read in all
-- RETURNS
--   count            number of fields
--   fields           field, record, ... without the values of signals. The record of a step is cut
--                    after its times, and "" if it is too large to read

local job, steps = unpack(KEYS)
local most, budget = unpack(ARGV)

--- @include "are_own_steps"
--- @include "ignore_wrongtype"

local SMALL, LONGEST_NAME = 1024, 512
local count, reply = ignore_wrongtype(redis.pcall("HLEN", steps)) or 0, {}
budget = tonumber(budget)
if count > 0 and not are_own_steps(job, steps) then
  count = 0
end
if count > tonumber(most) then
  return { count, reply }
end
for _, field in ipairs(count > 0 and redis.call("HKEYS", steps) or {}) do
  local kind = string.match(field, "^(%l+):")
  if #field <= LONGEST_NAME
    and (kind == "step" or kind == "signal" or kind == "sleep" or kind == "done") then
    local size, record = redis.call("HSTRLEN", steps, field), ""
    if size <= SMALL or size <= budget then
      budget = size <= SMALL and budget or budget - size
      record = redis.call("HGET", steps, field)
      local value_at = size > SMALL and string.find(record, ",\"value\":", 1, true)
      if value_at then
        record = string.sub(record, 1, math.min(value_at - 1, SMALL)) .. ",\"value\":null}"
      elseif size > SMALL then
        record = ""
      end
    end
    reply[#reply + 1] = field
    reply[#reply + 1] = record
  end
end
return { count, reply }
