-- peek_events: find what the newest events of a queue tell about one job.
--
-- KEYS
--   events     stream   what happened
-- ARGV
--   job_id
--   most                how many events are looked at
--   room                bytes of their values after which no more are
-- RETURNS
--   looked_at           how many events
--   done                1 if there are no older ones
--   found               id, event, prev ("" if it has none), ... the newest first

local events = unpack(KEYS)
local job_id, most, room = unpack(ARGV)

local PIECE = 10 -- an event may carry a large result: few are read at once
most, room = tonumber(most), tonumber(room)
local looked_at, done, newest, found = 0, 0, "+", {}
while looked_at < most and room > 0 and done == 0 do
  -- A piece begins with the last of the one before: Redis 6.0 knows no ranges without their ends.
  local piece = redis.call("XREVRANGE", events, newest, "-", "COUNT", PIECE + 1)
  local first = newest == "+" and 1 or 2
  for i = first, #piece do
    local fields, about = piece[i][2], {}
    for place = 1, #fields, 2 do
      about[fields[place]] = fields[place + 1]
      room = room - #fields[place + 1]
    end
    looked_at = looked_at + 1
    if about.jobId == job_id then
      found[#found + 1] = piece[i][1]
      found[#found + 1] = string.sub(about.event or "", 1, 100)
      found[#found + 1] = string.sub(about.prev or "", 1, 100)
    end
  end
  done = #piece <= PIECE and 1 or 0
  newest = #piece > 0 and piece[#piece][1] or newest
end
return { looked_at, done, found }
