-- list_failures: read why jobs failed, only the fields needed to group them by error.
--
-- KEYS
--   place      any    jobs of one state: a list, oldest at the tail, or a sorted set
-- ARGV
--   prefix            queue key prefix
--   ids               msgpack array: failed jobs to read, if they are still in the set; or {}
--   ranks             msgpack array: instead, ranks of failed jobs, counted from the newest; or {}
--   start             for unfinished jobs: index of the first, counted from the next to run
--   most              for unfinished jobs: maximum number of jobs to check
--   longest           bytes to keep of each field
--   room              stop after this many bytes of stacks
-- RETURNS
--   looked_at         number of jobs checked
--   jobs              id, name, reason, at, head, tail, ... of those that have failed. `at` is when
--                     the job finished, or when its last attempt started. `head` and `tail` are
--                     from the newest stack, as encoded in JSON. Unknown values are ""

local place = unpack(KEYS)
local prefix, ids, ranks, start, most, longest, room = unpack(ARGV)

--- @include "cut_field"
--- @include "list_page"
--- @include "ignore_wrongtype"

-- Return the first 300 and last 600 bytes of a job's newest stack, as encoded in JSON, and the
-- number of bytes read. Empty if there is no stack, or if all together exceed 64 kB.
local function cut_stack(job)
  local size = ignore_wrongtype(redis.pcall("HSTRLEN", job, "stacktrace"))
  if not size or size < 3 or size > 65536 then
    return "", "", 0
  end
  local stacks = redis.call("HGET", job, "stacktrace")
  -- JSON escapes quotes inside a string, so this sequence only occurs between two strings.
  local first, at = 2, string.find(stacks, "\",\"", 1, true)
  while at do
    first, at = at + 2, string.find(stacks, "\",\"", at + 2, true)
  end
  local newest = string.sub(stacks, first + 1, -3)
  return string.sub(newest, 1, 300), string.sub(newest, -600), size
end

ids, ranks, room = cmsgpack.unpack(ids), cmsgpack.unpack(ranks), tonumber(room)
start, most = tonumber(start), tonumber(most)
local are_given, is_failed = #ids > 0, #ids + #ranks > 0
if is_failed then
  most = #ids + #ranks
else
  local kind = redis.call("TYPE", place).ok
  if kind == "list" then
    ids = list_page(place, start, most)
  elseif kind == "zset" then
    ids = redis.call("ZRANGE", place, start, start + most - 1)
  end
  most = #ids
end

local looked_at, jobs = 0, {}
while looked_at < most and room > 0 do
  looked_at = looked_at + 1
  local rank = ranks[looked_at]
  local id = rank and redis.call("ZREVRANGE", place, rank, rank)[1] or ids[looked_at]
  if id and (not are_given or redis.call("ZSCORE", place, id)) then
    local job = prefix .. id
    local reason = cut_field(job, "failedReason", longest)
    local name = (reason ~= "" or is_failed) and cut_field(job, "name", longest) or ""
    if reason ~= "" or name ~= "" then
      local head, tail, size = cut_stack(job)
      room = room - size
      jobs[#jobs + 1] = id
      jobs[#jobs + 1] = name
      jobs[#jobs + 1] = reason
      jobs[#jobs + 1] = cut_field(job, is_failed and "finishedOn" or "processedOn", 32)
      jobs[#jobs + 1] = head
      jobs[#jobs + 1] = tail
    end
  end
end
return { looked_at, jobs }
