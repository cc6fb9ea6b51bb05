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
--- @include "refusal"

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

-- run(...) -> Redis's reply, and its error if the key has another type or an entry with a later id.
-- Any other error is raised.
local function run(...)
  local reply = redis.pcall(...)
  local problem = refusal(reply)
  if problem and not string.find(problem, "WRONGTYPE", 1, true)
    and not string.find(problem, "stream ID", 1, true)
    and not string.find(problem, "specified in XADD", 1, true) then
    redis.call(...) -- it raises the error with its code, on every version of Redis
  end
  return reply, problem
end

-- last_number(items, run_number) -> the number of the last item in a run, or 0.
local function last_number(items, run_number)
  local newest = run("XREVRANGE", items, "+", "-", "COUNT", 1)[1]
  local last_run, number = string.match(newest and newest[1] or "0-0", "^(%d+)-(%d+)$")
  return tonumber(last_run) == run_number and tonumber(number) or 0
end

local codes, words, place = {}, ARGV, 4
while place <= #words do
  local id, token, number, attempt, limit, rest, first, count = unpack(words, place, place + 7)
  local key = prefix .. id
  local items, code = key .. ":tb:items", check_job(key, key .. ":lock", token)
  first, count, place = tonumber(first), tonumber(count), place + 8
  if code == 0 then
    code = tonumber(number)
    if code == 0 then
      code = begin_run(key, items, token, attempt, limit, rest)
    end
    local written, problem = is_repeated == "1" and last_number(items, code) or 0, nil
    for i = 0, count - 1 do
      if first + i > written and not problem then
        problem = select(2, run("XADD", items, "MAXLEN", "=", limit, code .. "-" .. first + i,
          "item", words[place + i]))
      end
    end
    redis.call("PEXPIRE", items, life)
    code = problem or code
  end
  codes[#codes + 1] = code
  place = place + count
end
return codes
