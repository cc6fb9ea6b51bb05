-- cancel_children: fail a cancelled job's unstarted children, a few per call.
--
-- KEYS
--   parents   list   sets of pending children; the tail is in progress
-- ARGV
--   now              ms
--   longest          maximum length of a list to search for a job
--   pending          set that the previous call worked on, or ""
--   cursor           cursor to continue from in that set
--   count            approximate number of children to check
-- RETURNS
--   pending          set in progress, or "" when done
--   cursor           cursor to continue from in that set
-- EFFECTS
--   running children continue, and finished ones stay as they are. The children of a job that fails
--   here are cancelled as well: their set is pushed to `parents`. When all are done, the job leaves
--   the queue's set of jobs with children to cancel. A set that belongs to another queue's job is
--   skipped unless that job was cancelled. A child that names another parent is skipped

local parents = unpack(KEYS)
local now, longest, pending, cursor, count = unpack(ARGV)

--- @include "cancel_waiting"
--- @include "is_child"
--- @include "split_key"
--- @include "ignore_wrongtype"

local function is_full(problem)
  return string.find(problem, "OOM", 1, true) or string.find(problem, "READONLY", 1, true)
end

local current = (ignore_wrongtype(redis.pcall("LRANGE", parents, -1, -1)) or {})[1]
if not current then
  local noted, first = string.match(parents, "^(.*:tb:cancelling):(.*):parents$")
  redis.call("SREM", noted, first)
  return { "", "0" }
end
-- A parent that was not kept has left its children in a set with another name.
local own_base = string.match(parents, "^(.*:)tb:cancelling:") or ""
local is_own = string.sub(current, 1, #own_base) == own_base
local parent_key = string.match(current, "^(.*):dependencies$")
if parent_key and not is_own then
  local reason = redis.pcall("HGET", parent_key, "failedReason")
  parent_key = type(reason) == "string" and is_cancelled(reason) and parent_key or nil
elseif not parent_key then
  local base, id = string.match(current, "^(.*:)tb:cancelling:(.*):left$")
  parent_key = base and base .. id
end
local reason = "cancelled: parent " .. (parent_key or "")
local found = { "0", {} }
if parent_key then
  found = redis.pcall("SSCAN", current, current == pending and cursor or "0", "COUNT", count)
end
local children = found.err and {} or found[2]
for i = 1, #children do
  local base, id = split_key(children[i])
  if string.sub(children[i], 1, #own_base) == own_base then -- an id may contain colons
    base, id = own_base, string.sub(children[i], #own_base + 1)
  end
  local is_done, problem = true, nil
  if is_child(children[i], parent_key) then
    is_done, problem =
      pcall(cancel_waiting, base, id, reason, tonumber(now), tonumber(longest), parents)
  end
  problem = type(problem) == "table" and problem.err or tostring(problem)
  -- A child that this user cannot access must not block the others.
  if not is_done and (string.find(problem, "run th", 1, true) or is_full(problem)) then
    error(problem, 0)
  end
end
local next_cursor = found.err and "0" or found[1]
if next_cursor == "0" then
  redis.call("LREM", parents, -1, current) -- new sets are pushed to the head
end
return { current, next_cursor }
