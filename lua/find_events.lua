-- find_events: find one job among the queue's newest events.
--
-- KEYS
--   events     stream   queue events
-- ARGV
--   job_id
--   most                maximum number of events to check
--   room                stop after this many bytes of event values
-- RETURNS
--   looked_at           number of events checked
--   done                1 if there are no older events
--   found               id, event, prev or "", ... newest first

local events = unpack(KEYS)
local job_id, most, room = unpack(ARGV)

local PIECE = 10 -- small, because an event may carry a large result
most, room = tonumber(most), tonumber(room)
local looked_at, done, newest, found = 0, 0, "+", {}
while looked_at < most and room > 0 and done == 0 do
  -- Each chunk starts with the last event of the previous one: Redis 6.0 has no exclusive ranges.
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
