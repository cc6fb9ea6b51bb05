-- peek_retried: show why unfinished jobs failed in earlier attempts.
--
-- KEYS
--   place      any    unfinished jobs of one state: a list or a sorted set
-- ARGV
--   prefix            queue key prefix
--   start             index of the first job, counted from the next to run
--   most              maximum number of jobs to check
--   longest           bytes to keep of each field
--   room              stop after this many bytes of stacks
-- RETURNS
--   looked_at         number of jobs checked
--   jobs              id, name, reason, started, head, tail, ... of those that have failed. `head`
--                     and `tail` are from the newest stack, as encoded in JSON. Unknown values are
--                     ""

local place = unpack(KEYS)
local prefix, start, most, longest, room = unpack(ARGV)

--- @include "cut_field"
--- @include "cut_stack"
--- @include "list_page"

start, most, room = tonumber(start), tonumber(most), tonumber(room)
local kind, ids = redis.call("TYPE", place).ok, {}
if kind == "list" then
  ids = list_page(place, start, most)
elseif kind == "zset" then
  ids = redis.call("ZRANGE", place, start, start + most - 1)
end

local looked_at, jobs = 0, {}
for _, id in ipairs(ids) do
  if room <= 0 then
    break
  end
  looked_at = looked_at + 1
  local job = prefix .. id
  local reason = cut_field(job, "failedReason", longest)
  if reason ~= "" then
    local head, tail, size = cut_stack(job)
    room = room - size
    jobs[#jobs + 1] = id
    jobs[#jobs + 1] = cut_field(job, "name", longest)
    jobs[#jobs + 1] = reason
    jobs[#jobs + 1] = cut_field(job, "processedOn", 32)
    jobs[#jobs + 1] = head
    jobs[#jobs + 1] = tail
  end
end
return { looked_at, jobs }
