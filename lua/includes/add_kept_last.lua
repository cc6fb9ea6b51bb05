--- @include "delayed_score"
--- @include "finite"
--- @include "mark_base"
--- @include "mark_delay"
--- @include "names_own_key"
--- @include "priority_score"
--- @include "split_key"
--- @include "typed"

-- add_kept_last(prefix, name, keys, queue, now): add the last job that was deduplicated while the
-- owner of `name` was running, if any. `keys` has counter, delayed, prioritized, priority_counter,
-- marker, events; `queue` is from queue_state.
local function add_kept_last(prefix, name, keys, queue, now)
  local stored_key = prefix .. "dn:" .. name
  local flat = typed(redis.pcall("HGETALL", stored_key)) or {}
  if #flat == 0 then
    return
  end
  local stored = {}
  for i = 1, #flat, 2 do
    stored[flat[i]] = flat[i + 1]
  end
  redis.call("DEL", prefix .. "tb:none") -- raises if DEL below would be refused
  local number = redis.call("INCR", keys.counter)
  local id = string.format("%.0f", number)
  if stored.jid and not names_own_key(stored.jid) then
    id = stored.jid
  end
  local readable, opts = pcall(cjson.decode, stored.opts or "{}")
  opts = readable and type(opts) == "table" and opts or {}
  local delay, priority = finite(opts.delay) or 0, finite(opts.priority) or 0
  local dedup = type(opts.de) == "table" and opts.de or {}
  local ttl = math.floor(finite(dedup.ttl) or 0)
  if ttl > 0 and dedup.keepLastIfActive ~= true then
    redis.call("SET", prefix .. "de:" .. name, id, "PX", ttl)
  else
    redis.call("SET", prefix .. "de:" .. name, id)
  end
  local key = prefix .. id
  redis.call("HSET", key, "name", stored.name or "", "data", stored.data or "{}",
    "opts", stored.opts or "{}", "timestamp", now, "delay", delay, "priority", priority,
    "deid", name)
  if stored.rjk then
    redis.call("HSET", key, "rjk", stored.rjk)
  end
  local parent_key, dependencies = stored.pk or "", stored.pdk
  if parent_key ~= "" and dependencies == parent_key .. ":dependencies" then
    local may_join = string.sub(parent_key, 1, #prefix) == prefix
    if not may_join then
      -- A parent in another queue has not named this job. Join it only if it waits for nothing
      -- else, since it would otherwise wait forever.
      local base, parent_id = split_key(parent_key)
      may_join = type(redis.pcall("ZSCORE", base .. "waiting-children", parent_id)) == "string"
        and redis.pcall("EXISTS", dependencies) == 0
    end
    if may_join then
      redis.call("HSET", key, "parentKey", parent_key, "parent", stored.pd or "{}")
      redis.pcall("SADD", dependencies, key)
    end
  end
  redis.call("XADD", keys.events, "*", "event", "added", "jobId", id, "name", stored.name or "")
  if delay > 0 then
    local due = now + delay
    redis.call("ZADD", keys.delayed, delayed_score(keys.delayed, due), id)
    redis.call("DEL", stored_key)
    redis.call("XADD", keys.events, "*", "event", "delayed", "jobId", id, "delay", due)
    mark_delay(keys.marker, keys.delayed)
  else
    if priority > 0 then
      local score = priority_score(priority, keys.priority_counter)
      redis.call("ZADD", keys.prioritized, score, id)
    else
      redis.call(opts.lifo == true and "RPUSH" or "LPUSH", queue.target, id)
    end
    redis.call("DEL", stored_key)
    mark_base(keys.marker, queue.blocked)
    redis.call("XADD", keys.events, "*", "event", "waiting", "jobId", id)
  end
end
