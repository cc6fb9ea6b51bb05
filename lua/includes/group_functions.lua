--- @include "finite"
--- @include "place_in_group"

-- group_functions(prefix, now) -> the functions that give the groups of a queue their turns and
-- enforce their limits. They are built on demand, because most queues have no groups.
--
-- Every waiting job of a group is in `prioritized`, where BullMQ's workers find it too, and in the
-- group's own set, both with the same score: a rank below 2^32, one per weight after the job before
-- it. So BullMQ's workers, which take the lowest score, are fair as well. Jobs without a group are
-- the group "". Private keys:
--   tb:turns               zset     groups with waiting jobs that may start, by turn
--   tb:held                zset     groups that a limit holds back, by the ms of the next check:
--                                   half a minute away at most, so that a group that is held by
--                                   mistake starts again
--   tb:running             hash     job id -> group, for groups with a concurrency limit
--   tb:groups              hash     "=" declared settings of all groups, "*<id>" declared weight of
--                                   one group, "*" JSON of all these, "+<id>" its own settings.
--                                   Settings are five words: concurrency, max, duration in ms,
--                                   weight, paused; "-" if unset
--   tb:group:<id>:jobs     zset     waiting jobs of a group
--   tb:group:<id>:running  set      running jobs of a group with a concurrency limit
--   tb:group:<id>:window   string   cost of the jobs started in the limiter's window
-- A job that someone else removed or started is still in the group's set, and is skipped because it
-- is not in `prioritized`.
local function group_functions(prefix, now)
  local RANKS, PART = 4294967296, 1 / 1024
  local MOST_PLACED, MOST_RECHECKED, SPARE, MOST_STALE, MOST_LOCKS = 100, 20, 20, 500, 1000
  local MANY, LONG = 8, string.rep("-", 256)
  local RECHECK, LAST_RECHECK, MOST_MS = 5000, 30000, 9007199254740991 -- ms
  local turns, held, running = prefix .. "tb:turns", prefix .. "tb:held", prefix .. "tb:running"
  local prioritized, settings = prefix .. "prioritized", prefix .. "tb:groups"
  local SETTINGS = { "concurrency", "max", "duration", "weight", "paused" }
  local UNLIMITED = { weight = 1 }
  local functions, known, has_settings = {}, {}, nil

  local function key_of(group, part)
    return prefix .. "tb:group:" .. group .. ":" .. part
  end

  -- read_group(opts) -> the group of a job with these options ("" if it has none), its cost, and
  -- true if it goes to the front of its group.
  local function read_group(opts)
    local has_group = opts and string.find(opts, "\"group\"", 1, true)
    if not has_group and not (opts and string.find(opts, "\"lifo\"", 1, true)) then
      return "", 1, false
    end
    local is_json, options = pcall(cjson.decode, opts)
    options = is_json and type(options) == "table" and options or {}
    local group, is_lifo = options.group, options.lifo == true
    local id = type(group) == "table" and group.id
    if type(id) == "number" then
      id = string.format("%.17g", id)
    end
    if type(id) ~= "string" or id == "" or #id > 1020 then -- 255 characters of four bytes
      return "", 1, is_lifo
    end
    local cost = math.floor(finite(group.cost) or 1)
    return id, cost >= 0 and cost or 1, is_lifo
  end

  -- limits_of(group) -> {weight, and concurrency, max, duration, paused if they are set}.
  local function limits_of(group)
    local limits = known[group]
    if not limits then
      has_settings = has_settings or redis.call("EXISTS", settings)
      if has_settings == 0 then
        return UNLIMITED
      end
      limits = { weight = 1 }
      known[group] = limits
      local stored = group == "" and {}
        or redis.call("HMGET", settings, "=", "*" .. group, "+" .. group)
      limits.weight = math.max(1, finite(stored[2]) or 1)
      for i = 1, 3, 2 do
        local number = 0
        for word in string.gmatch(stored[i] or "", "%S+") do
          number = number + 1
          limits[SETTINGS[number]] = finite(word) or limits[SETTINGS[number]]
        end
      end
      limits.paused = limits.paused == 1
      limits.max = limits.duration and limits.max -- both, or none
      limits.duration = limits.duration and math.min(math.max(limits.duration, 1), MOST_MS)
    end
    return limits
  end

  -- find_running(group) -> how many jobs of the group hold a living lock, and the ids of those that
  -- lost it. Of many jobs, only some are checked, others each time.
  local function find_running(group)
    local key = key_of(group, "running")
    local count, dead, is_seen = redis.call("SCARD", key), {}, {}
    local ids = count <= MOST_LOCKS and redis.call("SMEMBERS", key)
      or redis.call("SRANDMEMBER", key, -MOST_LOCKS) -- with repetitions, which is faster
    for first = 1, #ids, 1000 do
      local locks = {}
      for i = first, math.min(first + 999, #ids) do
        locks[#locks + 1] = prefix .. ids[i] .. ":lock"
      end
      local holders = redis.call("MGET", unpack(locks))
      for i = 1, #locks do
        local id = ids[first + i - 1]
        if not holders[i] and not is_seen[id] then
          dead[#dead + 1], is_seen[id] = id, true
        end
      end
    end
    return count - #dead, dead
  end

  -- count_running(group, most) -> how many jobs of the group hold a living lock, or a number below
  -- `most` that is not less. The places of the others are freed.
  local function count_running(group, most)
    local key = key_of(group, "running")
    local count = redis.call("SCARD", key)
    if count < most then
      return count
    end
    local alive, dead = find_running(group)
    for i = 1, #dead do
      redis.call("SREM", key, dead[i])
      redis.call("HDEL", running, dead[i])
    end
    return alive
  end

  -- Return what the jobs of the group have used of its limiter's window, or nil if none is open.
  local function window_used(group)
    return finite(redis.call("GET", key_of(group, "window")))
  end

  -- Return the ms until the limiter's window ends. If the limiter has become shorter, so has the
  -- window. It is below 0 if the window would never end.
  local function window_rest(group)
    return math.min(redis.call("PTTL", key_of(group, "window")), limits_of(group).duration)
  end

  -- Let a window end with its limiter.
  local function bound_window(group)
    local window, duration = key_of(group, "window"), limits_of(group).duration
    local rest = redis.call("PTTL", window)
    if rest < 0 or rest > duration then
      redis.call("PEXPIRE", window, string.format("%.0f", duration))
    end
  end

  -- find_hold(group, cost, is_counted) -> ms when to check again whether a job of this cost may
  -- start, or nil if it may start now. With `is_counted`, jobs that lost their locks since the last
  -- count still take their places.
  local function find_hold(group, cost, is_counted)
    local limits = limits_of(group)
    if limits.paused then
      return now + LAST_RECHECK
    end
    if limits.concurrency then
      local count = is_counted and redis.call("SCARD", key_of(group, "running"))
        or count_running(group, limits.concurrency)
      if count >= limits.concurrency then
        return now + RECHECK
      end
    end
    local used = limits.max and window_used(group)
    if used and used > 0 and used + cost > limits.max then
      bound_window(group)
      return now + math.min(window_rest(group), LAST_RECHECK)
    end
  end

  -- Redis searches a sorted set of up to 128 short members from its start: 30,000 instructions to
  -- move one of 100. It does not once the set has had a long member.
  local function make_skiplist(set)
    if redis.call("EXISTS", set) == 1 then
      redis.call("ZADD", set, 0, LONG)
      redis.call("ZREM", set, LONG)
    end
  end

  local function hold(group, recheck)
    redis.call("ZADD", held, string.format("%.0f", recheck), group)
    redis.call("ZREM", turns, group)
  end

  -- The number of the turn after all others. Its fraction counts the jobs that a group with a
  -- weight has started in its turn.
  local function last_turn()
    local last = redis.call("ZREVRANGE", turns, 0, 0, "WITHSCORES")[2]
    return math.floor(finite(last) or 0) + 1
  end

  local function join_turns(group)
    redis.call("ZADD", turns, "NX", last_turn(), group)
  end

  -- release(group) -> whether the group was held. It gets a turn, and is held again there if it
  -- still has no room.
  local function release(group)
    if redis.call("ZREM", held, group) == 0 then
      return false
    end
    join_turns(group)
    return true
  end

  local function place(group, ids, is_front)
    place_in_group(prefix, group, limits_of(group).weight, ids, is_front)
    if not redis.call("ZSCORE", held, group) then
      join_turns(group)
    end
  end

  -- place_all(ids): let waiting jobs wait in their groups. A job whose last run used no attempt
  -- waits before the others of its group. `tbrt` is the number of its last run that failed.
  local function place_all(ids)
    local groups, fronts, backs = {}, {}, {}
    for i = 1, #ids do
      local fields = redis.pcall("HMGET", prefix .. ids[i], "opts", "ats", "atm", "tbrt")
      if fields.err then
        fields = {}
      end
      local group, _, is_front = read_group(fields[1])
      local starts = finite(fields[2]) or 0
      is_front = is_front or starts > (finite(fields[3]) or 0) and starts ~= finite(fields[4])
      if not fronts[group] then
        groups[#groups + 1], fronts[group], backs[group] = group, {}, {}
      end
      local list = is_front and fronts[group] or backs[group]
      list[#list + 1] = ids[i]
    end
    for i = 1, #groups do
      local group = groups[i]
      if #fronts[group] > 0 then
        place(group, fronts[group], true)
      end
      if #backs[group] > 0 then
        place(group, backs[group], false)
      end
    end
  end

  -- place_waiting(wait) -> whether there are more: place jobs from the tail of the list `wait`, and
  -- jobs with a priority if no other job without a group waits.
  local function place_waiting(wait, most)
    local tail = redis.call("LRANGE", wait, -MOST_PLACED, -1)
    local ids = {}
    for i = #tail, 1, -1 do
      if not string.find(tail[i], "^0:") then -- marker of an old version
        ids[#ids + 1] = tail[i]
      end
    end
    place_all(ids)
    if #tail > 0 then
      redis.call("LTRIM", wait, 0, -#tail - 1)
    end
    local ranked = redis.call("EXISTS", key_of("", "jobs")) == 0
      and redis.call("ZRANGEBYSCORE", prioritized, RANKS, "+inf", "LIMIT", 0, most) or {}
    place_all(ranked)
    return #tail == MOST_PLACED or most > 0 and #ranked == most
  end

  -- Read up to `size` more waiting jobs of some groups. Jobs that are not in `prioritized` are
  -- stale.
  local function read_jobs(entries, first, last, size)
    local all, owners, stop = {}, {}, string.format("%d", size)
    for e = first, last do
      local entry = entries[e]
      local ids
      if entry.read == 0 then
        ids = redis.call("ZRANGE", entry.jobs, "0", stop)
      else
        ids = redis.call("ZRANGE", entry.jobs, entry.read, entry.read + size)
      end
      local count = #ids -- one more than `size`, unless the group has no more
      entry.is_end = count <= size
      if count > size then
        count = size
      end
      entry.read = entry.read + count
      for i = 1, count do
        all[#all + 1], owners[#owners + 1] = ids[i], entry
      end
    end
    for start = 1, #all, 1000 do
      local stop = math.min(start + 999, #all)
      local ranks = redis.call("ZMSCORE", prioritized, unpack(all, start, stop))
      for i = start, stop do
        local list = ranks[i - start + 1] and owners[i].ids or owners[i].stale
        list[#list + 1] = all[i]
      end
    end
  end

  -- Return the next job of a group, and its cost if the group has a limiter.
  local function peek_job(entry, size, limits)
    while not entry.ids[entry.started + 1] do
      if entry.is_end or #entry.stale >= MOST_STALE then
        return nil
      end
      read_jobs({ entry }, 1, 1, size)
    end
    local id, cost = entry.ids[entry.started + 1], 1
    if limits.max then
      cost = select(2, read_group(redis.call("HGET", prefix .. id, "opts")))
    end
    return id, cost
  end

  -- choose(wait, most) -> up to `most` ids of waiting jobs, each group in its turn, and whether the
  -- next call may find more. Call `commit` when they have left `prioritized`.
  local line, owners, costs, turns_after -- groups in the order of their turns; of each chosen id
  local function choose(wait, most)
    local is_more = place_waiting(wait, most)
    local due = redis.call("ZRANGEBYSCORE", held, "-inf", now, "LIMIT", "0", MOST_RECHECKED)
    for i = 1, #due do
      release(due[i])
    end
    local ids, at, held_count, any_unread = {}, 1, 0, false
    line, owners, costs, turns_after = {}, {}, {}, {}
    -- Append the groups with the turns from `first` on. Return whether there are no more.
    local function extend_line(first, count)
      has_settings = has_settings or redis.call("EXISTS", settings)
      local step = has_settings + 1 -- turns matter only with weights, and cost 2,600 instructions
      local ready = step == 1 and redis.call("ZRANGE", turns, first, first + count - 1)
        or redis.call("ZRANGE", turns, first, first + count - 1, "WITHSCORES")
      for i = 1, #ready, step do
        -- All fields are here, because a table that grows costs 1,000 instructions.
        line[#line + 1] = { group = ready[i], jobs = key_of(ready[i], "jobs"),
          turn = step == 1 and 0 or tonumber(ready[i + 1]), read = 0, started = 0, cost = 0,
          ids = { nil, nil }, stale = { nil, nil }, is_end = false, is_over = false,
          next_turn = false, held_cost = false, room = false, used = false }
      end
      return #ready < step * count
    end
    local is_all, is_extended = extend_line(0, most), false
    local again, again_at, size = {}, 1, math.ceil(most / math.max(1, #line))
    local tail = #line > 0 and last_turn()
    read_jobs(line, 1, #line, size)
    while #ids < most and (line[at] or not is_extended or again[again_at]) do
      if not line[at] and not is_all and not is_extended then
        is_extended, is_all = true, extend_line(#line - held_count, SPARE)
      end
      local entry = line[at]
      if entry then
        at = at + 1
      elseif is_all and again[again_at] then
        entry = again[again_at]
        again_at = again_at + 1
      else
        break
      end
      local limits, is_turn = limits_of(entry.group), true
      while is_turn and #ids < most do
        local id, cost = peek_job(entry, size, limits)
        local recheck
        is_turn, entry.is_over = false, not id
        any_unread = any_unread or not id and not entry.is_end
        if id and (limits.concurrency or limits.max or limits.paused) then
          if entry.started == 0 then
            recheck = find_hold(entry.group, cost)
            if not recheck and limits.concurrency then
              entry.room = limits.concurrency - count_running(entry.group, limits.concurrency)
            end
            entry.used = limits.max and window_used(entry.group)
          elseif entry.room and entry.started >= entry.room then
            recheck = now + RECHECK
          elseif limits.max then
            local used = (entry.used or 0) + entry.cost
            recheck = used > 0 and used + cost > limits.max and now + RECHECK or nil
          end
        end
        if recheck then
          entry.held_cost, held_count = cost, held_count + 1
          hold(entry.group, recheck)
        elseif id then
          local turn = entry.turn + PART
          if math.floor(turn) + limits.weight * PART <= turn then
            turn, tail = tail, tail + 1
            again[#again + 1] = entry
          else
            is_turn = true
          end
          entry.started, entry.cost, entry.turn = entry.started + 1, entry.cost + cost, turn
          local count = #ids + 1
          ids[count], owners[count], costs[count], turns_after[count] = id, entry, cost, turn
        end
      end
    end
    is_more = is_more or #ids < most and (not is_all or any_unread)
    if #line == 0 and not is_more and redis.call("EXISTS", held) == 0 then
      -- No group is left. Jobs that still wait as if they had one were in keys that got lost.
      local lost = redis.call("ZRANGEBYSCORE", prioritized, "-inf", "(" .. RANKS, "LIMIT", 0,
        MOST_PLACED)
      place_all(lost)
      is_more = #lost > 0
      if not is_more and redis.call("EXISTS", running) == 0 then
        redis.call("HDEL", prefix .. "meta", "tb:groups")
      end
    end
    return ids, is_more
  end

  -- commit(ids, count, taken): record that the jobs in `taken` were started, in the order of `ids`.
  -- The first `count` chosen ids have left `prioritized`.
  local function commit(ids, count, taken)
    local taken_at = 1
    for i = 1, count do
      local entry = owners[i]
      entry.stale[#entry.stale + 1] = ids[i] -- like those that were not in `prioritized` before
      entry.next_turn = turns_after[i]
      if taken[taken_at] == ids[i] then
        taken_at = taken_at + 1
        local limits = limits_of(entry.group)
        if limits.concurrency then
          redis.call("SADD", key_of(entry.group, "running"), ids[i])
          redis.call("HSET", running, ids[i], entry.group)
        end
        if limits.max then
          local window = key_of(entry.group, "window")
          local used = redis.pcall("INCRBY", window, string.format("%.0f", costs[i]))
          if type(used) == "table" then -- not a number
            redis.pcall("SET", window, string.format("%.0f", costs[i]))
          end
          bound_window(entry.group)
        end
      end
    end
    local next_turns = {}
    for i = 1, #line do
      local entry, gone = line[i], line[i].stale
      if #gone > 0 or entry.is_over or entry.held_cost then
        if #gone == 1 then
          redis.call("ZREM", entry.jobs, gone[1])
        end
        for first = 1, #gone > 1 and #gone or 0, 1000 do
          redis.call("ZREM", entry.jobs, unpack(gone, first, math.min(first + 999, #gone)))
        end
        if entry.is_end and #gone == entry.read then
          redis.call("ZREM", turns, entry.group)
          if entry.held_cost then
            redis.call("ZREM", held, entry.group)
          end
        elseif entry.held_cost then
          local recheck = find_hold(entry.group, entry.held_cost, true)
          if recheck then
            hold(entry.group, recheck)
          else
            release(entry.group)
          end
        elseif entry.next_turn then
          local turn = entry.next_turn
          next_turns[#next_turns + 1] = turn % 1 == 0 and string.format("%.0f", turn) or turn
          next_turns[#next_turns + 1] = entry.group
        end
      end
    end
    if #line > MANY then
      make_skiplist(turns)
      make_skiplist(held)
    end
    for first = 1, #next_turns, 1000 do
      redis.call("ZADD", turns, unpack(next_turns, first, math.min(first + 999, #next_turns)))
    end
  end

  -- next_check() -> ms when a held group is checked next, or nil.
  local function next_check()
    return finite(redis.call("ZRANGE", held, 0, 0, "WITHSCORES")[2])
  end

  -- free(ids, last) -> whether a held group has room now: these jobs have ended.
  local function free(ids, last)
    local any_released = false
    for first = 1, last, 1000 do
      local slice = { unpack(ids, first, math.min(first + 999, last)) }
      local groups = redis.call("HMGET", running, unpack(slice))
      for i = 1, #slice do
        if groups[i] then
          redis.call("HDEL", running, slice[i])
          redis.call("SREM", key_of(groups[i], "running"), slice[i])
          any_released = release(groups[i]) or any_released
        end
      end
    end
    return any_released
  end

  functions.key_of, functions.read_group, functions.limits_of = key_of, read_group, limits_of
  functions.place_all, functions.release = place_all, release
  functions.choose, functions.commit, functions.free = choose, commit, free
  functions.place_waiting, functions.window_used = place_waiting, window_used
  functions.window_rest, functions.bound_window = window_rest, bound_window
  functions.next_check, functions.find_running, functions.join_turns =
    next_check, find_running, join_turns
  return functions
end
