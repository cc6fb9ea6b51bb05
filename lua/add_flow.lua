-- add_flow: add a tree of jobs, across any number of queues, or a chunk of a large tree.
--
-- KEYS
--   memo                string   number, mark and answers of the producer's last call
--   flows               zset     roots of incomplete trees, by the ms when to give up
-- ARGV
--   root                         key of the tree's root
--   now                          ms
--   call                         number of this call in its sequence
--   mark                         hex digits that distinguish it from another producer's call
--   memo_life                    ms to remember the answers
--   deadline                     ms by when the rest of the tree must arrive, or "" if this is all
--   owner                        of a tree in chunks: distinguishes it from another tree with this
--                                root
--   token                        token of the root's lock if the root is running and adds children,
--                                or ""
--   order                        order of the root's children, stored with the last of those it
--                                adds while it runs; or ""
--   bases                        msgpack array: key prefix of each queue
--   runs                         msgpack array of jobs, each parent before its children.
--                                Consecutive jobs that differ only in id and data are one run. Each
--                                run is an array: index of its queue in `bases`, name, opts,
--                                timestamp, delay, priority (as text), lifo, parent (false or {key,
--                                id, queue key, stored JSON}), waits (0 without children, 1 if all
--                                of them are in this call, 2 if more will come), order of its
--                                children or "", then the ids. The data of each job follows
--                                `complete`, one argument each
--   complete                     msgpack array: queue index in `bases` and id of each parent from
--                                earlier calls whose last child is in this one
-- RETURNS
--   a code for each job: 0 added, 1 the id exists. If the call is refused, nothing is done and it
--   returns the position of a job in this call and its code: -5 no such parent, -7 it has another
--   parent, -13 it is in an incomplete tree (and that tree's owner if the root is the same).
--   Position 0 is for the root: -2 it has no lock, -6 another worker's lock. Empty if the sequence
--   has moved on or another producer used the number
-- EFFECTS
--   as in BullMQ 6's flow producer: a parent whose children have all finished is released at the
--   end. While the tree is incomplete, the root's field `tbfl` names the owner, and other owners
--   cannot add to the tree. Two sets next to the root list what existed before the tree: `tb:old`
--   has the adopted jobs and the children they already waited for, `tb:growing` has the adopted
--   jobs that get children from the tree

local memo, flows = unpack(KEYS)
local root, now, call, mark, memo_life, deadline, owner, token, order, bases, runs, complete =
  unpack(ARGV)

--- @include "queue_state"
--- @include "event_limit"
--- @include "wake_worker"
--- @include "add_delay_marker"

local redis, words = redis, ARGV
local last = redis.call("GET", memo)
if last then
  local number, theirs, rest = string.match(last, "^(%d+):(%x*):()")
  if number == call and theirs == mark then
    return cmsgpack.unpack(string.sub(last, rest))
  elseif number and tonumber(number) >= tonumber(call) then
    return {}
  end
end
now, bases, runs = tonumber(now), cmsgpack.unpack(bases), cmsgpack.unpack(runs)
complete = cmsgpack.unpack(complete)
local LEFTOVER_LIFE = 86400000 -- ms, for sets that a refused call leaves behind
local is_chunk = token == "" and (deadline ~= "" or #complete > 0)

-- Refuse before writing anything. Usually no job exists yet, which one command can confirm.
if token ~= "" then
  --- @include "check_lock"
  local refused = check_lock(root .. ":lock", token)
  if refused ~= 0 then
    return { 0, refused }
  end
end
local nodes, ids, keys, here, exists = {}, {}, {}, {}, {}
-- Placeholder in a parent's dependencies that blocks its release while more children will come. As
-- a key, it is in its parent's slot and names nothing.
local hold = ":tb:flow"
local FIRST_ID = 11
for r = 1, #runs do
  local run = runs[r]
  local base = bases[run[1]]
  for i = FIRST_ID, #run do
    local n = #nodes + 1
    nodes[n], ids[n], keys[n] = run, run[i], base .. run[i]
  end
end
local any_exists = #keys > 0 and redis.call("EXISTS", unpack(keys)) > 0
local is_first, is_ours = keys[1] == root, false
if not is_first and owner ~= "" or is_first and any_exists
  and redis.call("ZSCORE", flows, root) then
  local theirs = redis.pcall("HGET", root, "tbfl")
  is_ours = theirs == owner
  if not is_ours then
    return { 1, -13, type(theirs) == "string" and theirs or "" }
  end
end
local unfinished = {}
for n = 1, #nodes do
  local key, parent = keys[n], nodes[n][8]
  here[key] = true
  exists[n] = any_exists and redis.call("EXISTS", key) == 1
  unfinished[n] = exists[n]
    and redis.pcall("SISMEMBER", key .. ":dependencies", key .. hold) == 1
  if parent then
    if not here[parent[1]] then
      if redis.call("EXISTS", parent[1]) == 0 then
        return { n, -5 }
      end
      here[parent[1]] = true
    end
    local old = exists[n] and redis.call("HGET", key, "parentKey")
    if old and old ~= parent[1] and redis.call("EXISTS", old) == 1 then
      return { n, -7 }
    end
  end
  -- A job that runs again may continue the trees that it began to add.
  if unfinished[n] and not is_ours and token == "" then
    return { n, -13, "" }
  end
end

local queues = {}
for b = 1, #bases do
  local base = bases[b]
  queues[b] = queue_state(base .. "meta", base .. "active", base .. "wait", base .. "paused")
  local queue = queues[b]
  queue.events, queue.jobs, queue.any_delayed = base .. "events", 0, false
  queue.fifo, queue.lifo, queue.classes = {}, {}, {}
end
local answers, added, at = {}, {}, #words - #nodes

-- Add members to each list or set with one command, after all hashes and events.
local parents, children_of = {}, {}

local function write_job(n, queue, base, job)
  local name, opts, timestamp, delay, priority, is_lifo, parent, waits, below = unpack(job, 2, 10)
  local id, key, events = ids[n], keys[n], queue.events
  added[#added + 1] = n
  if parent then
    redis.call("HSET", key, "name", name, "data", words[at + n], "opts", opts,
      "timestamp", timestamp, "delay", delay, "priority", priority,
      "parentKey", parent[1], "parent", parent[4])
    local children = children_of[parent[1]]
    if not children then
      children = {}
      parents[#parents + 1], children_of[parent[1]] = parent[1], children
    end
    children[#children + 1] = key
  else
    redis.call("HSET", key, "name", name, "data", words[at + n], "opts", opts,
      "timestamp", timestamp, "delay", delay, "priority", priority)
  end
  redis.call("XADD", events, "*", "event", "added", "jobId", id, "name", name)
  if below ~= "" then
    redis.call("HSET", key, "tbch", below)
  end
  if waits > 0 then
    redis.call("ZADD", base .. "waiting-children", timestamp, id)
    redis.call("XADD", events, "*", "event", "waiting-children", "jobId", id)
  elseif delay ~= "0" then
    --- @include "delayed_score"
    local due = tonumber(timestamp) + tonumber(delay)
    redis.call("ZADD", base .. "delayed", delayed_score(base .. "delayed", due), id)
    redis.call("XADD", events, "*", "event", "delayed", "jobId", id, "delay", due)
    queue.any_delayed = true
  else
    if priority ~= "0" then
      queue.classes[#queue.classes + 1] = tonumber(priority)
      queue.classes[#queue.classes + 1] = id
    else
      local list = is_lifo and queue.lifo or queue.fifo
      list[#list + 1] = id
    end
    redis.call("XADD", events, "*", "event", "waiting", "jobId", id)
  end
end

local function write_members(queue, base)
  local fifo, lifo, classes = queue.fifo, queue.lifo, queue.classes
  if #fifo > 0 then
    redis.call("LPUSH", queue.target, unpack(fifo))
  end
  if #lifo > 0 then
    redis.call("RPUSH", queue.target, unpack(lifo))
  end
  if #classes > 0 then
    local count = #classes / 2
    local rank = redis.call("INCRBY", base .. "pc", count) - count
    for i = 1, #classes, 2 do
      rank = rank + 1
      classes[i] = classes[i] * 0x100000000 + rank % 0x100000000
    end
    redis.call("ZADD", base .. "prioritized", unpack(classes))
  end
  if #fifo + #lifo + #classes > 0 then
    wake_worker(base .. "marker", queue.blocked)
  end
  if queue.any_delayed then
    add_delay_marker(base .. "marker", base .. "delayed")
  end
  if queue.jobs > 0 then
    redis.call("INCRBY", base .. "id", queue.jobs)
  end
end

local function write()
  for n = 1, #nodes do
    local job, base = nodes[n], bases[nodes[n][1]]
    local id, parent, waits = ids[n], job[8], job[9]
    local queue = queues[job[1]]
    queue.jobs = queue.jobs + 1
    if exists[n] then
      if is_chunk then
        -- Jobs that existed before the tree stay if the producer gives up, as do the children that
        -- they already waited for.
        local key, existing, growing = base .. id, root .. ":tb:old", root .. ":tb:growing"
        redis.call("SADD", existing, key)
        if waits > 0 then
          redis.call("SUNIONSTORE", existing, existing, key .. ":dependencies")
          if key ~= root then
            redis.call("SADD", growing, key)
            redis.call("PEXPIRE", growing, LEFTOVER_LIFE)
          end
        end
        redis.call("PEXPIRE", existing, LEFTOVER_LIFE)
      end
      if parent then
        --- @include "attach_to_parent"
        attach_to_parent(base, id, parent, base .. "completed", now, true)
      end
      if unfinished[n] and waits > 0 then
        redis.call("HSET", base .. id, "tbch", job[10])
      end
      redis.call("XADD", queue.events, "*", "event", "duplicated", "jobId", id)
    else
      write_job(n, queue, base, job)
    end
    if waits == 2 then
      redis.call("SADD", base .. id .. ":dependencies", base .. id .. hold)
    elseif waits == 1 then
      complete[#complete + 1] = { job[1], id }
    end
    answers[n] = exists[n] and 1 or 0
  end
  for i = 1, #parents do
    redis.call("SADD", parents[i] .. ":dependencies", unpack(children_of[parents[i]]))
  end
  for b = 1, #bases do
    write_members(queues[b], bases[b])
  end
  if deadline ~= "" then
    redis.call("ZADD", flows, deadline, root)
    if is_first then
      redis.call("HSET", root, "tbfl", owner)
    end
  end
  if order ~= "" then
    redis.call("HSET", root, "tbch", order)
  elseif token ~= "" and redis.call("HEXISTS", root, "tbch") == 0 then
    -- Children that may never arrive do not count yet.
    redis.call("HSET", root, "tbch", "[]")
  end
end

-- All or nothing: a child must not exist without its parent, nor after its producer got an error.
local is_written, problem = pcall(write)
if not is_written then
  --- @include "undo_add"
  for i = 1, #added do
    local job = nodes[added[i]]
    local base = bases[job[1]]
    local sets = { base .. "delayed", base .. "waiting-children", base .. "prioritized" }
    undo_add(base, ids[added[i]], sets, queues[job[1]].target)
    redis.pcall("DEL", keys[added[i]] .. ":dependencies")
  end
  error(problem, 0)
end
for i = 1, #complete do
  local base, id = bases[complete[i][1]], complete[i][2]
  local dependencies = base .. id .. ":dependencies"
  redis.call("SREM", dependencies, base .. id .. hold)
  if redis.call("SCARD", dependencies) == 0
    and redis.call("ZSCORE", base .. "waiting-children", id) then
    --- @include "release_parent"
    release_parent(base .. id, base, id, now)
  end
end
if deadline == "" and is_chunk then
  redis.call("ZREM", flows, root)
  redis.call("HDEL", root, "tbfl")
  redis.call("DEL", root .. ":tb:old", root .. ":tb:growing")
end
for b = 1, #bases do
  local base = bases[b]
  redis.call("XTRIM", base .. "events", "MAXLEN", "~", event_limit(base .. "meta", queues[b]))
end
redis.call("SET", memo, call .. ":" .. mark .. ":" .. cmsgpack.pack(answers), "PX", memo_life)
return answers
