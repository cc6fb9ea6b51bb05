-- parent_functions() -> the functions that pass a finished job on to its parent and to deduplicated
-- jobs. Each run builds every function again and few jobs need these, so they are built on demand.
local function parent_functions()
  --- @include "detach_from_parent"
  --- @include "notify_parent_completed"
  --- @include "find_parent"
  --- @include "is_cancelled"
  --- @include "assert_can_remove"
  --- @include "count_dropped_child"
  --- @include "release_parent"
  --- @include "delayed_score"
  --- @include "finite"
  --- @include "wake_worker"
  --- @include "add_delay_marker"
  --- @include "is_reserved_id"
  --- @include "priority_score"
  --- @include "split_key"
  --- @include "ignore_wrongtype"

  -- add_kept_last(prefix, name, keys, queue, now): add the last job that was deduplicated while the
  -- owner of `name` was running, if any. `keys` has counter, delayed, prioritized,
  -- priority_counter, marker, events; `queue` is from queue_state.
  local function add_kept_last(prefix, name, keys, queue, now)
    local stored_key = prefix .. "dn:" .. name
    local flat = ignore_wrongtype(redis.pcall("HGETALL", stored_key)) or {}
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
    if stored.jid and not is_reserved_id(stored.jid) then
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
      add_delay_marker(keys.marker, keys.delayed)
    else
      if priority > 0 then
        local score = priority_score(priority, keys.priority_counter)
        redis.call("ZADD", keys.prioritized, score, id)
      else
        redis.call(opts.lifo == true and "RPUSH" or "LPUSH", queue.target, id)
      end
      redis.call("DEL", stored_key)
      wake_worker(keys.marker, queue.blocked)
      redis.call("XADD", keys.events, "*", "event", "waiting", "jobId", id)
    end
  end

  -- notify_parent_failed(key, parent_key, reason, now): apply the child's failure policy to its
  -- parent. Without a policy, the parent keeps waiting. The child stays pending until the end, as
  -- in notify_parent_completed.
  local function notify_parent_failed(key, parent_key, reason, now)
    local parent = find_parent(key, parent_key)
    if not (parent.fpof or parent.cpof or parent.idof or parent.rdof) then
      return
    end
    local dependencies = parent_key .. ":dependencies"
    if not is_waiting_for(parent_key, key) then
      return
    end
    local base, id = parent.base, parent.id
    local waits = redis.call("ZSCORE", base .. "waiting-children", id)
    if parent.fpof then
      redis.call("ZADD", parent_key .. ":unsuccessful", now, key)
      local deferred_failure = "child " .. key .. " failed"
      local known = redis.pcall("HGET", parent_key, "defa")
      if type(known) == "string" and is_cancelled(known) then
        deferred_failure = known -- a cancelled job stays cancelled
      end
      if waits then
        redis.call("HSET", parent_key, "defa", deferred_failure)
        release_parent(parent_key, base, id, now)
      elseif redis.call("ZSCORE", base .. "delayed", id) then
        assert_can_remove(base .. "delayed")
        redis.call("HSET", parent_key, "delay", 0, "defa", deferred_failure)
        release_parent(parent_key, base, id, now)
        redis.call("ZREM", base .. "delayed", id)
      elseif redis.call("EXISTS", parent_key) == 1
        and not redis.call("ZSCORE", base .. "failed", id) then
        redis.call("HSET", parent_key, "defa", deferred_failure)
      end
    else
      if parent.rdof then
        count_dropped_child(parent_key)
      else
        redis.call("HSET", parent_key .. ":failed", key, reason)
      end
      if waits and (parent.cpof or redis.call("SCARD", dependencies) == 1) then
        release_parent(parent_key, base, id, now)
      end
    end
    redis.call("SREM", dependencies, key)
  end

  -- end_deduplication(prefix, id, name): release the deduplication id `name` when its owner
  -- finishes. An id with a time to live expires instead.
  local function end_deduplication(prefix, id, name)
    local key = prefix .. "de:" .. name
    if redis.call("PTTL", key) == -1 and redis.pcall("GET", key) == id then
      redis.call("DEL", key)
    end
  end

  return { detach_from_parent = detach_from_parent, notify_completed = notify_parent_completed,
    notify_failed = notify_parent_failed, end_deduplication = end_deduplication,
    add_kept_last = add_kept_last }
end
