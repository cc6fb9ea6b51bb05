-- set_group: change the settings of one group, or those declared for all groups.
--
-- KEYS
--   groups     hash     settings of the groups
--   active     list     running jobs
--   meta       hash     queue settings
--   marker     zset     wakes workers
-- ARGV
--   prefix              queue key prefix
--   now                 ms
--   group               id of the group, or "" for the settings declared for all groups
--   changes             msgpack array: concurrency, max, duration in ms, weight, paused; each as
--                       text, "-" to remove it, or "" to keep it
--   weights             JSON map of the declared weights by group, or "" for none; not used for one
--                       group
-- RETURNS
--   1 if the settings changed, else 0
-- EFFECTS
--   running jobs are counted from now on, and held groups are checked again. Overrides of one group
--   are kept when the settings of all groups change

local groups, active, meta, marker = unpack(KEYS)
local prefix, now, group, changes, weights = unpack(ARGV)

--- @include "group_functions"
--- @include "queue_state"
--- @include "wake_worker"

changes = cmsgpack.unpack(changes)
local field = group == "" and "=" or "+" .. group
local old = redis.call("HGET", groups, field)
local words, had_limit = {}, false
for word in string.gmatch(old or "- - - - -", "%S+") do
  words[#words + 1] = word
end
for _, stored in ipairs({ old or "", group ~= "" and redis.call("HGET", groups, "=") or "" }) do
  had_limit = had_limit or string.find(stored, "^%d") ~= nil
end
for i = 1, 5 do
  words[i] = changes[i] ~= "" and changes[i] or words[i] or "-"
end
local new = table.concat(words, " ")
local is_empty = not string.find(new, "[^- ]")
local changed = is_empty and old or not is_empty and new ~= old
if is_empty then
  redis.call("HDEL", groups, field)
else
  redis.call("HSET", groups, field, new)
end
local old_weights = group == "" and redis.call("HGET", groups, "*") or ""
if group == "" and old_weights ~= weights then
  changed = true
  for id in pairs(old_weights ~= "" and cjson.decode(old_weights) or {}) do
    redis.call("HDEL", groups, "*" .. id)
  end
  for id, weight in pairs(weights ~= "" and cjson.decode(weights) or {}) do
    redis.call("HSET", groups, "*" .. id, weight)
  end
  if weights == "" then
    redis.call("HDEL", groups, "*")
  else
    redis.call("HSET", groups, "*", weights)
  end
end
if not changed then
  return 0
end

local functions = group_functions(prefix, tonumber(now))
if words[1] ~= "-" and not had_limit then
  -- Jobs that started while their group had no limit take places too.
  local MOST = 10000
  local ids = redis.call("LRANGE", active, 0, MOST - 1)
  for i = 1, #ids do
    local opts = redis.pcall("HGET", prefix .. ids[i], "opts")
    local id = type(opts) == "string" and functions.read_group(opts) or ""
    if id ~= "" and (group == "" or id == group) then
      redis.call("SADD", functions.key_of(id, "running"), ids[i])
      redis.call("HSET", prefix .. "tb:running", ids[i], id)
      redis.call("HSET", meta, "tb:groups", "1")
    end
  end
end
if group == "" then
  local MOST_HELD = 1000 -- the others are checked within half a minute
  for _, id in ipairs(redis.call("ZRANGE", prefix .. "tb:held", 0, MOST_HELD - 1)) do
    functions.release(id)
  end
elseif not functions.release(group)
  and redis.call("EXISTS", functions.key_of(group, "jobs")) == 1 then
  functions.join_turns(group)
end
wake_worker(marker, queue_state(meta, active, prefix .. "wait").blocked)
return 1
