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
--   another worker's lock, -14 another program has changed the job's stream
-- EFFECTS
--   an item has the id `<run>-<number>`, so it is written once even if a call is repeated. A run
--   after the first one writes the entry `<run>-0`, which means that the job has restarted. The
--   field `tbst` of the job is `<run> <ms to live> <limit> <token>`

local stalled = unpack(KEYS)
local prefix, life, is_repeated = unpack(ARGV)

--- @include "check_job"
--- @include "ignore_wrongtype"
--- @include "refusal"

local UNWRITABLE = -14
local MOST_RUNS = 10 ^ 13 -- Lua writes larger numbers with an exponent.

-- last_id(items) -> run and number of the newest entry, or 0 and 0 if there is none.
local function last_id(items)
  local newest = ignore_wrongtype(redis.pcall("XREVRANGE", items, "+", "-", "COUNT", 1))
  local run, number = string.match(newest and newest[1] and newest[1][1] or "", "^(%d+)-(%d+)$")
  return tonumber(run) or 0, tonumber(number) or 0
end

-- begin_run(key, items, token, attempt, limit, rest) -> the number of the run with this token.
local function begin_run(key, items, token, attempt, limit, rest)
  local known = redis.call("HGET", key, "tbst") or ""
  local number, holder = string.match(known, "^(%d+) %d+ %d+ (.*)$")
  if holder == token then
    return tonumber(number)
  end
  local run = tonumber(number)
  if not run then
    -- A removed job with this id may have left items. Some readers may be past them already.
    run = last_id(items)
    run = run < MOST_RUNS and run or 0
    if redis.call("EXISTS", items) == 1 then -- A full Redis refuses no command after a DEL.
      redis.call("DEL", items)
    end
  end
  run = run + 1
  if run > 1 then
    -- If the id exists, an earlier call was refused after this command.
    redis.pcall("XADD", items, "MAXLEN", "=", limit, run .. "-0", "event", "restart",
      "attempt", attempt)
  end
  redis.call("HSET", key, "tbst", run .. " " .. rest .. " " .. limit .. " " .. token)
  return run
end

-- write_item(items, limit, id, item) -> whether the item was written. False if another program has
-- changed the key.
local function write_item(items, limit, id, item)
  local message = refusal(redis.pcall("XADD", items, "MAXLEN", "=", limit, id, "item", item))
  if not message then
    return true
  end
  if string.find(message, "WRONGTYPE", 1, true) or string.find(message, " stream ", 1, true) then
    return false
  end
  redis.call("XADD", items, "MAXLEN", "=", limit, id, "item", item) -- raises the error
  return true
end

local codes, words, place = {}, ARGV, 4
while place <= #words do
  local id, token, run, attempt, limit, rest, first, count = unpack(words, place, place + 7)
  local key = prefix .. id
  local items, code = key .. ":tb:items", check_job(key, key .. ":lock", token)
  first, count, place = tonumber(first), tonumber(count), place + 8
  if code == 0 then
    code = tonumber(run)
    if code == 0 then
      code = begin_run(key, items, token, attempt, limit, rest)
    end
    local written = 0
    if is_repeated == "1" then
      local last_run, last = last_id(items)
      written = last_run == code and last or 0
    end
    for i = 0, count - 1 do
      if first + i > written
        and not write_item(items, limit, code .. "-" .. first + i, words[place + i]) then
        code = UNWRITABLE
        break
      end
    end
    redis.call("PEXPIRE", items, life)
  end
  codes[#codes + 1] = code
  place = place + count
end
return codes
