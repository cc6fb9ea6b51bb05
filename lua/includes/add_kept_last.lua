--- @include "delayed_score"
--- @include "mark_base"
--- @include "mark_delay"
--- @include "priority_score"

-- add_kept_last(prefix, name, keys, queue, now): add the job that was deduplicated last while the
-- owner of `name` ran, if there is one. `keys` has counter, delayed, prioritized, priority_counter,
-- marker, events; `queue` is what queue_state gave.
local function add_kept_last(prefix, name, keys, queue, now)
  local stored_key = prefix .. "dn:" .. name
  local flat = redis.call("HGETALL", stored_key)
  if #flat == 0 then
    return
  end
  local stored = {}
  for i = 1, #flat, 2 do
    stored[flat[i]] = flat[i + 1]
  end
  redis.call("DEL", stored_key)
  local number = redis.call("INCR", keys.counter)
  local id = stored.jid or string.format("%.0f", number)
  local readable, opts = pcall(cjson.decode, stored.opts or "{}")
  opts = readable and type(opts) == "table" and opts or {}
  local delay, priority = tonumber(opts.delay) or 0, tonumber(opts.priority) or 0
  local dedup = type(opts.de) == "table" and opts.de or {}
  local ttl = tonumber(dedup.ttl) or 0
  if ttl > 0 and not dedup.keepLastIfActive then
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
  if stored.pk then
    redis.call("HSET", key, "parentKey", stored.pk, "parent", stored.pd or "{}")
  end
  redis.call("XADD", keys.events, "*", "event", "added", "jobId", id, "name", stored.name or "")
  if delay > 0 then
    local due = now + delay
    redis.call("ZADD", keys.delayed, delayed_score(keys.delayed, due), id)
    redis.call("XADD", keys.events, "*", "event", "delayed", "jobId", id, "delay", due)
    mark_delay(keys.marker, keys.delayed)
  else
    if priority > 0 then
      local score = priority_score(priority, keys.priority_counter)
      redis.call("ZADD", keys.prioritized, score, id)
    else
      redis.call(opts.lifo and "RPUSH" or "LPUSH", queue.target, id)
    end
    mark_base(keys.marker, queue.blocked)
    redis.call("XADD", keys.events, "*", "event", "waiting", "jobId", id)
  end
  if stored.pdk then
    redis.call("SADD", stored.pdk, key)
  end
end
