-- search_jobs: search some jobs of a state for texts.
--
-- KEYS
--   place          any              jobs of one state
-- ARGV
--   prefix                        queue key prefix
--   wanted                        msgpack array of {fields, texts}; for each, one of the fields
--                                 must contain one of the texts
--   fields                        msgpack array: name, most, ... as for read_fields
--   start                         index of the first job; in a list, counted from the next to run
--   newest_first                  "1" to search a set from its highest score, "0" from its lowest
--   score                         of the last job checked in a set, or "" to begin at `start`
--   id                            that job's id
--   bound                         last score to search
--   most                          maximum number of jobs to check
--   room                          stop after this many bytes
-- RETURNS
--   looked_at                     number of jobs checked
--   too_large                     number of jobs with a field over 256 kB, which was not searched
--   last, last_score              last job checked, or ""
--   done                          1 if there are no more jobs
--   hits                          id, score ("" in a list), values and sizes of its fields, ... of
--                                 each match
--   count                         number of all jobs there
--   last_added                    timestamp of the last job checked, or ""

local place = unpack(KEYS)
local prefix, wanted, fields, start, newest_first, score, id, bound, most, room = unpack(ARGV)

--- @include "cut_field"
--- @include "list_page"
--- @include "read_fields"
--- @include "rank_after"

wanted, fields = cmsgpack.unpack(wanted), cmsgpack.unpack(fields)
start, most, room = tonumber(start), tonumber(most), tonumber(room)
newest_first = newest_first == "1"
local edge = bound == "+inf" and math.huge or bound == "-inf" and -math.huge or tonumber(bound)

local kind = redis.call("TYPE", place).ok
local ids, scores, count = {}, {}, 0
if kind == "list" then
  count = redis.call("LLEN", place)
  ids = list_page(place, start, most)
elseif kind == "zset" then
  count = redis.call("ZCARD", place)
  if score ~= "" then
    start = rank_after(place, score, id, newest_first)
  end
  local range = newest_first and "ZREVRANGE" or "ZRANGE"
  local found = redis.call(range, place, start, start + most - 1, "WITHSCORES")
  for i = 1, #found, 2 do
    ids[#ids + 1], scores[#scores + 1] = found[i], found[i + 1]
  end
end

local too_large, hits, looked_at, done = 0, {}, 0, #ids < most
for i = 1, #ids do
  local here = tonumber(scores[i])
  if here and ((newest_first and here < edge) or (not newest_first and here > edge)) then
    done = true
    break
  end
  if room <= 0 then
    done = false
    break
  end
  looked_at = i
  local job, skipped, all = prefix .. ids[i], false, true
  local is_job = redis.call("TYPE", job).ok == "hash"
  for _, one in ipairs(wanted) do
    local found = false
    for _, field in ipairs(one[1]) do
      local value = ""
      local size = is_job and redis.call("HSTRLEN", job, field) or 0
      if size > 262144 then
        skipped = true
      elseif size > 0 then
        value = redis.call("HGET", job, field)
        room = room - size
      end
      for _, text in ipairs(one[2]) do
        found = found or string.find(value, text, 1, true) ~= nil
      end
    end
    all = all and found
    if not all then
      break
    end
  end
  if all and is_job then
    hits[#hits + 1] = ids[i]
    hits[#hits + 1] = scores[i] or ""
    hits[#hits + 1], room = read_fields(job, fields, room)
  end
  too_large = too_large + (skipped and 1 or 0)
end
local last, last_score = ids[looked_at] or "", scores[looked_at] or ""
local last_added = last == "" and "" or cut_field(prefix .. last, "timestamp", 32)
return { looked_at, too_large, last, last_score, done and 1 or 0, hits, count, last_added }
