-- settle_cycle: find out what a cycle has done whose reply was lost, a piece of `active` at a time.
--
-- KEYS
--   active   list     jobs that run, newest at the head
--   memo     string   token and codes of the last call of the same sequence that ended jobs
--                     (the token alone: all were 0)
-- ARGV
--   prefix            start of every key of this queue
--   token             of the call: value of the locks of the jobs that it may have taken
--   ended             msgpack array of the outcomes that it carried: job_id, token, ...
--   position          how much of the head of `active` was looked at
--   size              how many jobs to look at
-- RETURNS
--   position          where to go on; -1: all was looked at
--   taken             ids of the jobs that it took
--   codes             what it answered for each outcome; none: it was not executed, or long ago
--   held              of each outcome: 1 if its job is still locked by its token, else 0

local active, memo = unpack(KEYS)
local prefix, token, ended, position, size = unpack(ARGV)

local STEP = 1000
local PAIR = 0x92 -- how an array of two begins in msgpack

position, size = tonumber(position), tonumber(size)

local taken = {}
local ids = redis.call("LRANGE", active, position, position + size - 1)
for first = 1, #ids, STEP do
  local last = math.min(first + STEP - 1, #ids)
  local locks = {}
  for i = first, last do
    locks[#locks + 1] = prefix .. ids[i] .. ":lock"
  end
  local holders = redis.call("MGET", unpack(locks))
  for i = first, last do
    if holders[i - first + 1] == token then
      taken[#taken + 1] = ids[i]
    end
  end
end

local held = {}
ended = cmsgpack.unpack(ended)
for i = 1, #ended, 2 do
  local holder = redis.call("GET", prefix .. ended[i] .. ":lock")
  held[#held + 1] = holder == ended[i + 1] and 1 or 0
end

local codes, remembered = {}, redis.call("GET", memo)
if remembered == token then
  for i = 1, #held do
    codes[i] = 0
  end
elseif remembered and string.byte(remembered) == PAIR then -- else another token
  local last_call = cmsgpack.unpack(remembered)
  codes = last_call[1] == token and last_call[2] or {}
end

local next_position = -1
if #ids == size then
  -- A little is looked at twice: jobs that end meanwhile let the others move towards the head.
  next_position = position + size - math.floor(size / 8)
end
return { next_position, taken, codes, held }
