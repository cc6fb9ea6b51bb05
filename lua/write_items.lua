-- write_items: append items to the streams of running jobs; many jobs and items per call.
--
-- KEYS
--   stalled   set   selects the queue's node; not used otherwise
-- ARGV
--   prefix          queue key prefix
--   life            ms until a stream without new entries expires
--   is_repeated     1 if an earlier call may have written some of these items, else 0
--   ...             for each job: job_id; token of its lock; number of the run in the stream, or 0
--                   if this is the first write of the run; attempt; maximum number of entries; ms
--                   that the stream lives after the job; number of the first item, from 1; number
--                   of items; the items, as JSON
-- RETURNS
--   for each job the number of the run, or the reason for refusing: -1 no such job, -2 no lock, -6
--   another worker's lock, or Redis's error if a key of the job has the wrong type or content
-- EFFECTS
--   an item has the id `<run>-<number>`, so it is written once even if a call is repeated. A run
--   after the first one writes the entry `<run>-0`, which means that the job has restarted. The
--   field `tbst` of the job is `<run> <ms to live> <limit> <token>`

local stalled = unpack(KEYS)
local prefix, life, is_repeated = unpack(ARGV)

--- @include "check_job"

-- begin_run(key, items, token, attempt, limit, rest) -> the number of the run with this token.
local function begin_run(key, items, token, attempt, limit, rest)
  local known = redis.call("HGET", key, "tbst") or ""
  local number, holder = string.match(known, "^(%d+) %d+ %d+ (.*)$")
  if holder == token then
    return tonumber(number)
  end
  local run = (tonumber(number) or 0) + 1
  if run > 1 then
    -- If the id exists, an earlier call was refused after this command.
    redis.pcall("XADD", items, "MAXLEN", "=", limit, run .. "-0", "event", "restart",
      "attempt", attempt)
  end
  redis.call("HSET", key, "tbst", run .. " " .. rest .. " " .. limit .. " " .. token)
  return run
end

-- last_number(items, run) -> the number of the last item in a run, or 0.
local function last_number(items, run)
  local newest = redis.call("XREVRANGE", items, "+", "-", "COUNT", 1)[1]
  local last_run, number = string.match(newest and newest[1] or "0-0", "^(%d+)-(%d+)$")
  return tonumber(last_run) == run and tonumber(number) or 0
end

local words = ARGV

-- write_job(key, token, run, attempt, limit, rest, first, place, count) -> the number of the run,
-- or the reason for refusing. `place` is that of the first item.
local function write_job(key, token, run, attempt, limit, rest, first, place, count)
  local items, code = key .. ":tb:items", check_job(key, key .. ":lock", token)
  if code ~= 0 then
    return code
  end
  if run == 0 then
    run = begin_run(key, items, token, attempt, limit, rest)
  end
  local written = is_repeated == "1" and last_number(items, run) or 0
  for i = 0, count - 1 do
    if first + i > written then
      redis.call("XADD", items, "MAXLEN", "=", limit, run .. "-" .. first + i,
        "item", words[place + i])
    end
  end
  redis.call("PEXPIRE", items, life)
  return run
end

local codes, place = {}, 4
while place <= #words do
  local id, token, run, attempt, limit, rest, first, count = unpack(words, place, place + 7)
  place, count = place + 8, tonumber(count)
  local is_done, code = pcall(write_job, prefix .. id, token, tonumber(run), attempt, limit, rest,
    tonumber(first), place, count)
  if not is_done then
    code = type(code) == "table" and code.err or tostring(code)
    -- The key has another type, or an entry with a later id.
    if not string.find(code, "WRONGTYPE", 1, true) and not string.find(code, "stream ID", 1, true)
      and not string.find(code, "specified in XADD", 1, true) then
      error(code, 0)
    end
  end
  codes[#codes + 1] = code
  place = place + count
end
return codes
