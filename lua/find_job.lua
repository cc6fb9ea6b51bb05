-- find_job: read a job, its state, and how many jobs are ahead of it.
--
-- KEYS
--   completed          zset     completed jobs
--   failed             zset     failed jobs
--   delayed            zset     delayed jobs, by due time
--   prioritized        zset     waiting jobs with a priority
--   waiting_children   zset     parents waiting for their children
--   active             list     running jobs
--   wait               list     waiting jobs
--   paused             list     waiting jobs while the queue is paused
--   counter            string   last id assigned
-- ARGV
--   prefix                      queue key prefix
--   job_id
--   fields                      msgpack array: name, most, ... as for read_fields; or "" for all
--   room                        byte budget for large fields
--   deepest                     number of list entries to search from each end
-- RETURNS
--   state                       its name, or unknown if the job is nowhere
--   score                       if its state is a sorted set, else ""
--   job                         names and values of all fields, or values and sizes of some; false
--                               if it does not exist
--   lock                        remaining ms of its lock, as in PTTL
--   children                    processed, unprocessed, ignored, failed
--   before                      number of jobs ahead of it in its list or set, or -1 if not
--                               applicable
--   sure                        1 if that is exact, 0 if it is a guess
--   counter                     "" if there is none

local completed, failed, delayed, prioritized, waiting_children, active, wait, paused, counter =
  unpack(KEYS)
local prefix, job_id, fields, room, deepest = unpack(ARGV)

--- @include "cut_field"
--- @include "ignore_wrongtype"

-- list_place(list, id, deepest, prefix, timestamp) -> the index of an id, counted from the tail,
-- and whether it was seen there; nil if it is not in the list. A long list is first searched near
-- the position suggested by other jobs' timestamps, then `deepest` entries from each end. If that
-- fails, the position is a guess.
local function list_place(list, id, deepest, prefix, timestamp)
  local length = redis.call("LLEN", list)
  local is_long, first, last = length > 2 * deepest, 0, length
  timestamp = tonumber(timestamp) or 0

  -- Each step walks the list from its end, so take as few as possible.
  local function narrow(width)
    while last - first > width do
      local middle = math.floor((first + last) / 2)
      local other = redis.call("LRANGE", list, -1 - middle, -1 - middle)[1]
      local reply = ignore_wrongtype(redis.pcall("HGET", prefix .. other, "timestamp"))
      if (reply and tonumber(reply) or 0) < timestamp then
        first = middle + 1
      else
        last = middle
      end
    end
  end

  if is_long then
    narrow(500)
    local start = math.max(first - 500, 0)
    local near = redis.call("LRANGE", list, -start - 2000, -start - 1)
    for i = 1, #near do
      if near[i] == id then
        return start + #near - i, true
      end
    end
  end
  local found = redis.call("LPOS", list, id, "RANK", -1, "MAXLEN", deepest)
  if not found and length > deepest then
    found = redis.call("LPOS", list, id, "MAXLEN", deepest)
  end
  if found then
    return length - 1 - found, true
  end
  if not is_long then
    return nil, true
  end
  narrow(0)
  return math.min(math.max(first, deepest), length - deepest), false
end
--- @include "read_fields"
--- @include "ignore_wrongtype"

deepest = tonumber(deepest)
local key = prefix .. job_id
local job
if fields == "" then
  job = ignore_wrongtype(redis.pcall("HGETALL", key))
  job = job and #job > 0 and job
else
  job = read_fields(key, cmsgpack.unpack(fields), tonumber(room))
end
local state, score, before, sure = "unknown", "", -1, true

for _, each in ipairs({
  { completed, "completed" },
  { failed, "failed" },
  { delayed, "delayed" },
  { prioritized, "prioritized" },
  { waiting_children, "waiting-children" },
}) do
  local found = redis.call("ZSCORE", each[1], job_id)
  if found then
    state, score = each[2], found
    if each[1] == prioritized or each[1] == delayed then
      before = redis.call("ZCOUNT", each[1], "-inf", "(" .. found)
    end
    break
  end
end
if state == "unknown" then
  local timestamp = cut_field(key, "timestamp", 32)
  for _, each in ipairs({ { active, "active" }, { wait, "waiting" }, { paused, "paused" } }) do
    local place, seen = list_place(each[1], job_id, deepest, prefix, timestamp)
    if place and (seen or (sure and job)) then
      state, before, sure = each[2], place, seen
      if seen then
        break
      end
    end
  end
end

local function count(command, name)
  return ignore_wrongtype(redis.pcall(command, name)) or 0
end

local given = ignore_wrongtype(redis.pcall("GET", counter))
return {
  state,
  score,
  job or false,
  redis.call("PTTL", key .. ":lock"),
  {
    count("HLEN", key .. ":processed"),
    count("SCARD", key .. ":dependencies"),
    count("HLEN", key .. ":failed"),
    count("ZCARD", key .. ":unsuccessful"),
  },
  before,
  sure and 1 or 0,
  given and string.sub(given, 1, 32) or "",
}
