-- get_nodes: read jobs of one queue as tree nodes, with state and child count.
--
-- KEYS
--   completed          zset   completed jobs
--   failed             zset   failed jobs
--   delayed            zset   delayed jobs, by due time
--   prioritized        zset   waiting jobs with a priority
--   waiting_children   zset   parents waiting for their children
--   active             list   running jobs
--   wait               list   waiting jobs
--   paused             list   waiting jobs while the queue is paused
-- ARGV
--   prefix                    queue key prefix
--   size                      stop reading jobs after this many bytes
--   longest                   maximum length of a list to search. With a longer list, a locked job
--                             counts as active, and a job found nowhere else as waiting
--   jobs                      msgpack array: id, parent key or "", id, parent key, ...
-- RETURNS
--   for each job, until `size` is reached: state, fields, number of children, and 1 if the job is
--   gone or does not name this parent. State and fields are then what the parent has stored

local completed, failed, delayed, prioritized, waiting_children, active, wait, paused =
  unpack(KEYS)
local prefix, size, longest, jobs = unpack(ARGV)

size, longest, jobs = tonumber(size), tonumber(longest), cmsgpack.unpack(jobs)

-- Return the members of lists as a set, or nil if a list is too long.
local function members(...)
  local found = {}
  for _, list in ipairs({ ... }) do
    if redis.call("LLEN", list) > longest then
      return nil
    end
    for _, id in ipairs(redis.call("LRANGE", list, 0, -1)) do
      found[id] = true
    end
  end
  return found
end

local is_read, running, ready = false, nil, nil
local sets = { completed, "completed", failed, "failed", delayed, "delayed", prioritized,
  "prioritized", waiting_children, "waiting-children" }

local function state_of(id)
  for i = 1, #sets, 2 do
    if redis.call("ZSCORE", sets[i], id) then
      return sets[i + 1]
    end
  end
  if not is_read then
    is_read, running, ready = true, members(active), members(wait, paused)
  end
  local runs = running and running[id]
  if not running then
    runs = redis.call("EXISTS", prefix .. id .. ":lock") == 1
  end
  if runs then
    return "active"
  end
  return (not ready or ready[id]) and "waiting" or "unknown"
end

local function count(command, key)
  local found = redis.pcall(command, key)
  return type(found) == "number" and found or 0
end

-- Count all children, except the placeholder for children to come.
local function count_children(key)
  local held = redis.pcall("SISMEMBER", key .. ":dependencies", key .. ":tb:flow") == 1
  return count("HLEN", key .. ":processed") + count("HLEN", key .. ":failed")
    + count("ZCARD", key .. ":unsuccessful") + count("SCARD", key .. ":dependencies")
    - (held and 1 or 0)
end

local function remembered(key, parent)
  if parent ~= "" then
    local value = redis.pcall("HGET", parent .. ":processed", key)
    if type(value) == "string" then
      return "completed", { "returnvalue", value }
    end
    local reason = redis.pcall("HGET", parent .. ":failed", key)
    if type(reason) == "string" then
      return "failed", { "failedReason", reason }
    end
    if type(redis.pcall("ZSCORE", parent .. ":unsuccessful", key)) == "string" then
      return "failed", {}
    end
  end
  return "unknown", {}
end

-- Anyone who can write to the parent's queue can list any key as its child. See is_child.
local function names_parent(fields, parent)
  for n = 1, #fields, 2 do
    if fields[n] == "parentKey" then
      return fields[n + 1] == parent
    end
  end
  return false
end

local nodes, bytes = {}, 0
for i = 1, #jobs, 2 do
  if bytes >= size then
    break
  end
  local id, parent = jobs[i], jobs[i + 1]
  local key = prefix .. id
  local fields = redis.pcall("HGETALL", key)
  local state, children, gone = "", 0, 0
  if fields.err or #fields == 0 or parent ~= "" and not names_parent(fields, parent) then
    gone = 1
    state, fields = remembered(key, parent)
  else
    state, children = state_of(id), count_children(key)
  end
  for n = 1, #fields do
    bytes = bytes + #fields[n]
  end
  nodes[#nodes + 1] = { state, fields, children, gone }
end
return nodes
