-- settle_cycle: find out what a cycle with a lost reply did, a chunk of `active` per call.
--
-- KEYS
--   active   list     running jobs, newest at the head
--   memo     string   token and codes of the last call in the same sequence that finished jobs
--                     (only the token if all codes were 0)
-- ARGV
--   prefix            queue key prefix
--   token             token of the call, which locks the jobs that it may have fetched
--   ended             msgpack array of the outcomes that it sent: job_id, token, ...
--   position          number of entries checked so far, from the head of `active`
--   size              number of jobs to check
-- RETURNS
--   position          position to continue from, or -1 at the end
--   taken             ids of the jobs that it fetched
--   codes             its code for each outcome; empty if it was not executed, or too long ago
--   held              for each outcome, 1 if its token still locks the job, else 0

local active, memo = unpack(KEYS)
local prefix, token, ended, position, size = unpack(ARGV)

local STEP = 1000
local PAIR = 0x92 -- first byte of a two-element array in msgpack

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
elseif remembered and string.byte(remembered) == PAIR then -- otherwise another call's token
  local last_call = cmsgpack.unpack(remembered)
  codes = last_call[1] == token and last_call[2] or {}
end

local next_position = -1
if #ids == size then
  -- Overlap the chunks: jobs that finish in between move the others towards the head.
  next_position = position + size - math.floor(size / 8)
end
return { next_position, taken, codes, held }
