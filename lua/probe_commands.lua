-- probe_commands: run each Redis command that the scripts use, on test keys, and list failures.
--
-- KEYS
--   a_text     string   for string commands
--   another    string   target of RENAME
--   a_hash     hash     for hash commands
--   a_list     list     for list commands
--   a_set      set      for set commands
--   a_zset     zset     for sorted set commands
--   a_stream   stream   for stream commands
-- RETURNS
--   command, error, command, error, ... of the refused ones. An error if Redis refuses all writes
--   (OOM, READONLY, NOREPLICAS, MISCONF)
-- EFFECTS
--   no key remains: they are deleted, or expire if UNLINK is refused

local a_text, another, a_hash, a_list, a_set, a_zset, a_stream = unpack(KEYS)

local life = 60000
local calls = {
  { "SET", a_text, "1", "PX", life },
  { "PSETEX", a_text, life, "1" },
  { "GET", a_text },
  { "MGET", a_text, another },
  { "EXISTS", a_text },
  { "TYPE", a_text },
  { "INCR", a_text },
  { "INCRBY", a_text, 1 },
  { "PTTL", a_text },
  { "PERSIST", a_text },
  { "PEXPIRE", a_text, life },
  { "RENAME", a_text, another },
  { "HSET", a_hash, "field", 1 },
  { "PEXPIRE", a_hash, life },
  { "HGET", a_hash, "field" },
  { "HMGET", a_hash, "field" },
  { "HGETALL", a_hash },
  { "HKEYS", a_hash },
  { "HLEN", a_hash },
  { "HSTRLEN", a_hash, "field" },
  { "HEXISTS", a_hash, "field" },
  { "HSCAN", a_hash, 0 },
  { "HINCRBY", a_hash, "field", 1 },
  { "HDEL", a_hash, "none" },
  { "LPUSH", a_list, "a", "b" },
  { "PEXPIRE", a_list, life },
  { "RPUSH", a_list, "c" },
  { "LLEN", a_list },
  { "LPOS", a_list, "a" },
  { "LRANGE", a_list, 0, 1 },
  { "LSET", a_list, 0, "d" },
  { "LREM", a_list, 1, "none" },
  { "LTRIM", a_list, 0, 9 },
  { "RPOPLPUSH", a_list, a_list },
  { "SADD", a_set, "a", "b" },
  { "PEXPIRE", a_set, life },
  { "SCARD", a_set },
  { "SISMEMBER", a_set, "a" },
  { "SMISMEMBER", a_set, "a" },
  { "SMEMBERS", a_set },
  { "SRANDMEMBER", a_set, 1 },
  { "SSCAN", a_set, 0 },
  { "SUNIONSTORE", a_set, a_set },
  { "SREM", a_set, "none" },
  { "ZADD", a_zset, 1, "a", 2, "b" },
  { "PEXPIRE", a_zset, life },
  { "ZCARD", a_zset },
  { "ZCOUNT", a_zset, 0, 1 },
  { "ZSCORE", a_zset, "a" },
  { "ZMSCORE", a_zset, "a" },
  { "ZSCAN", a_zset, 0 },
  { "ZRANGE", a_zset, 0, 1 },
  { "ZREVRANGE", a_zset, 0, 1 },
  { "ZRANGEBYSCORE", a_zset, 0, 1 },
  { "ZREVRANGEBYSCORE", a_zset, 1, 0 },
  { "ZREM", a_zset, "none" },
  { "XADD", a_stream, "*", "field", 1 },
  { "PEXPIRE", a_stream, life },
  { "XLEN", a_stream },
  { "XRANGE", a_stream, "-", "+", "COUNT", 1 },
  { "XREVRANGE", a_stream, "+", "-", "COUNT", 1 },
  { "XTRIM", a_stream, "MAXLEN", 1 },
  { "DEL", another },
  { "UNLINK", a_text, another, a_hash, a_list, a_set, a_zset, a_stream },
}

local refused = {}
for _, call in ipairs(calls) do
  local reply = redis.pcall(unpack(call))
  local said = type(reply) == "table" and reply.err
  if said then
    for _, code in ipairs({ "OOM", "READONLY", "NOREPLICAS", "MISCONF" }) do
      if said:find(code .. " ", 1, true) then
        return redis.error_reply(said:sub((said:find(code, 1, true))))
      end
    end
    refused[#refused + 1] = call[1]
    refused[#refused + 1] = said
  end
end
return refused
