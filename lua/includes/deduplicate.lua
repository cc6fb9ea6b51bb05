--- @include "delete_job"

-- deduplicate(prefix, id, dedup, job, active, delayed, events) -> the id of the owner that this job
-- duplicates, or nil to add this job as the new owner. `dedup` is as in `add`; `job` has name,
-- data, opts.
local function deduplicate(prefix, id, dedup, job, active, delayed, events)
  local name, ttl, extend, replace, keep_last = unpack(dedup)
  local key, next_key = prefix .. "de:" .. name, prefix .. "dn:" .. name
  local owner = redis.call("GET", key)
  if owner and redis.call("PTTL", key) == -1 and redis.call("EXISTS", prefix .. owner) == 0 then
    -- The owner is gone, and nothing else would ever release the id.
    redis.call("DEL", key)
    owner = false
  end
  if not owner then
    if ttl > 0 and not keep_last then
      redis.call("SET", key, id, "PX", ttl)
    else
      redis.call("SET", key, id)
    end
    return nil
  end
  if keep_last and redis.call("LPOS", active, owner) then
    redis.call("DEL", next_key)
    redis.call("HSET", next_key, "name", job.name, "data", job.data, "opts", job.opts,
      "jid", id)
    redis.call("PERSIST", key)
  elseif replace then
    if redis.call("ZREM", delayed, owner) == 0 then
      return owner
    end
    delete_job(prefix .. owner)
    redis.call("XADD", events, "*", "event", "removed", "jobId", owner, "prev", "delayed")
    if ttl == 0 then
      redis.call("SET", key, id)
    elseif extend then
      redis.call("SET", key, id, "PX", ttl)
    else
      redis.call("SET", key, id, "KEEPTTL")
    end
    redis.call("XADD", events, "*", "event", "deduplicated", "jobId", id,
      "deduplicationId", name, "deduplicatedJobId", owner)
    return nil
  elseif extend and ttl > 0 then
    redis.call("SET", key, owner, "PX", ttl)
  end
  redis.call("XADD", events, "*", "event", "deduplicated", "jobId", owner,
    "deduplicationId", name, "deduplicatedJobId", id)
  return owner
end
